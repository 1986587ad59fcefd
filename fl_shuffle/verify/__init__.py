"""An independent check of a printed epsilon: ball arithmetic, and nothing else of this project.

A certificate (a JSON file) states a claim, the public facts that it rests on, the assumptions, and
a *witness*: free parameters of the proof. `check` recomputes every delta from facts and witness in
balls (python-flint) and compares. A bad witness gives a larger bound, never a wrong one.

The folder needs Python and python-flint alone and may be copied elsewhere: `python -m verify FILE`.
Sections and formulas are those of docs/proofs.md; docs/certificates.md describes the format.
"""
