"""What a report looks like to an accountant: distributions of the amplification variable.

Randomizers on finite and continuous domains, their products, pairs of inputs over finitely many
outcomes, and the Gaussian mechanism by itself. Nothing here knows how many clients there are.
"""
