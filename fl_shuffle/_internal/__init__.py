"""Tools without a subject: files, caches, threads, plug-ins, interrupts, start of the program."""
