"""An independent check of a printed epsilon: ball arithmetic, and nothing else of this project.

A certificate (a JSON file) states a claim, the public facts that it rests on, the assumptions, and
a *witness*: free parameters of the proof. `check` recomputes every delta from facts and witness in
balls (python-flint) and compares. A bad witness gives a larger bound, never a wrong one.

The folder needs Python and python-flint alone and may be copied elsewhere: `python -m verify FILE`.
Sections and formulas are those of docs/research/proofs; fields are those of
docs/certificate.schema.json.

A second verifier needs numbers with a sure direction (balls, intervals, exact rationals), and:

1. `local`: delta_G(epsilon; mu), mu^2 the sum of times (move/scale)^2, where a report's move is the
   lesser of sensitivity and 2 radius (section 1).
2. `sum`: the claim of section 14 with c = 4; which others count is said there.
3. `finite`: E(sum of n copies of B L)_+/(n gamma) (section 2), by any means: no witness is needed.
4. Rounds: the pair through the points (section 6, steps 1 to 3), and the distribution of a sum of
its
   losses by any convolution that rounds upwards. Ours is a power of a polynomial modulo
   x^cells - 1: index r holds all losses r + j cells, whose gains are two geometric series.
5. `convex order`: section 11 with its constants from a profile, one distribution for every other
report
   (section 12), E(sum)_+ of N equal terms.
6. `gram`: corners of the boxes (Lemmas 1 to 3), finite distributions above, the line (Lemma 4),
Theorem 2.

A claim about any client also asks that all groups of others agree with the client in scale, radius,
grid and move (section 17). A move that is not stated is two radii.

With a ledger also who was present, classes, `assumed_honest` (docs/reference/ledger-schema.md),
and the step of a report's grid: the least power of two that is at least scale 2^-16 and (radius +
12 scale) 2^-21, radius the largest of all that have this scale.
"""
