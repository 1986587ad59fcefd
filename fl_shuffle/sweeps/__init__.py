"""Many runs of one configuration, over a grid of settings and several seeds.

SWEEP/sweep.json   what is swept: the base configuration, the grid, the seeds
SWEEP/runs/NAME/   one run directory a point, named by combination and seed
SWEEP/runs.csv     one line a run
SWEEP/together.csv what all runs have cost together
SWEEP/table.csv    one line a combination: means and spreads over its seeds
SWEEP/sweep.html   the table and the figure of accuracy against epsilon
SWEEP/lock         held by the process that works on the sweep

`points` lays the grid out, `directory` makes and reopens the folder, `running` plays the points in
processes of their own (`worker`), and `results` reads what they left. A sweep that was stopped goes
on where it stood: finished runs are kept, unfinished ones resumed.
"""
