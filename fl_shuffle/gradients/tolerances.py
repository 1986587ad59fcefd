"""How work is divided and when a path pays: every tuning constant of gradients, with its reason.

None of them weakens a promise: what rounding may add is counted from them (`rounding`). But they
decide which records are added up together, so with others a seeded run has other last bits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GradientTolerances:
    """The one object that holds them; `TOLERANCES` is the one in use."""

    # engine
    radius_range: tuple[float, float] = 1e-12, 1e12
    """Clip radii allowed, so that float32 arithmetic on clipped gradients neither overflows nor
    vanishes."""

    # rounding
    other_roundings: float = 1.0 + 2.0**-20
    """Covers a handful of single roundings (a quotient, a product, the radius itself, 1/B), what
    counts as zero below float32's range, and terms of second order: less than sixteen half ulps
    together. May be raised, never lowered."""
    mean_roundings: float = 1.0 + 2.0**-21
    """The same for a mean that is clipped as a whole, whose length is a float64 sum."""

    # blocks
    block_numbers: int = 1 << 21
    """Numbers in one block of activations: few enough for the caches, many enough that the fixed
    cost of two dozen kernel calls per block does not show."""
    linear_block_numbers: int = 1 << 18
    """Without hidden layers a block of that size would be a large part of a round, and cores would
    wait."""
    row_numbers: int = 1 << 22
    """Numbers in one block's rows: they are one reply at least."""
    sum_passes: int = 4
    """A chain's sums are taken over so many passes in float32, before they join float64 ones: these
    have as many numbers as the model, and cost as much as a pass."""
    network_numbers: int = 1 << 23
    """Numbers in one block of a network: its layers' inputs as patches, results, and gradients by
    both."""
    written_numbers: int = 1 << 22
    """Gradients of single records held at once, and what autograd keeps: with fewer numbers the
    fixed cost of vmap shows, more of them leave the caches."""
    written_records: int = 512
    """Beyond so many records in a block the fixed cost does not show."""
    written_records_unknown: int = 32
    """The same where nobody knows what autograd keeps."""

    # client_sums
    stretch_records: int = 150
    """Products over so many records are one float32 sum. A longer stretch saves sums, but costs
    radius."""
    stretches: int = 4
    """So many stretches are added in float32 too, and what is longer in float64."""
    narrow_weights: int = 1 << 12
    """Layers with no more weights multiply in float64: their products are little of the work."""
    batched_numbers: int = 1 << 18
    """Products of clients that are made in one batched call: so many numbers."""

    # compiled_linear
    compiled_max_weights: int = 1 << 16
    """The weights are read again for every fourth record: they must stay in the second-level
    cache."""
    compiled_max_classes: int = 32
    """With more classes a panel's errors leave the first-level cache."""
    compiled_min_products: int = 1 << 24
    """Below so many multiplications a round, loading the compiled loop takes longer than it
    saves."""
    compiled_chain: int = 8
    """Records of a client that are added up in float32, before their sum joins a float64 one ..."""
    compiled_unclipped_chain: int = 512
    """... and where records are not clipped: nothing is promised of how far one moves the sum."""
    compiled_stretch_tiles: int = 4
    """Tiles of records that a sum of all clients adds up in float32."""

    compiled_mean_numbers: int = 1 << 15
    """Numbers of clients' means that are clipped and added up together: they stay in the
    second-level cache."""
    compiled_pairs_per_feature: float = 1.0
    """The length of a mean comes from products of pairs of its records where the square of their
    number is at most so many times the features: with more of them the mean itself is sooner
    made. The products take as much memory as the records, or less, from four features on ..."""
    compiled_pairs_reach: float = 100.0
    """... and where no record is longer than so many times the radius its client's mean is clipped
    to: where records cancel rounding leaves 2^-24 of them or so, and no length tells of it."""

    # general
    autograd_records: int = 512
    """Records of a client that go through autograd together, where none is clipped."""
    agreement: tuple[float, float] = 1e-4, 1e-5
    """A path is taken if its gradients are autograd's to so much, of each number and of the
    largest."""


TOLERANCES = GradientTolerances()
