"""The tuning constants of the partial-shuffle bound, as fields of the one object in `tolerances`.

Cells, nodes and candidates decide how tight a number is; inflation, slack and round-off cover what
double precision loses and may be raised, never lowered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartialShuffleTolerances:
    """Inherited by `Tolerances`; read as `TOLERANCES.<field>`."""

    # everywhere in bounds.partial_shuffle
    partial_shuffle_round_off: float = 1e-9
    """Covers the round-off of costs, closed forms and sums, and of two distances that are one."""
    partial_shuffle_max_exponent: float = 600.0
    """Exponentials are formed up to here, as e^709 overflows: such a bound is of no use."""
    partial_shuffle_tiny: float = 1e-300
    """Stands for zero where one divides by it or takes its logarithm."""

    # bounds.partial_shuffle.curve
    partial_shuffle_max_spread: float = 3.0
    """Beyond this many noise widths likelihood ratios vary too much to hide anybody."""
    partial_shuffle_min_others: int = 20
    """With fewer other reports the theorem says little, and takes longer than all else."""
    partial_shuffle_max_laplace_spread: float = 12.0
    """The largest spread for Laplace noise, whose likelihood ratios are bounded."""
    partial_shuffle_max_share: float = 0.98
    """A predicted mu above this share of the local one is no gain."""
    partial_shuffle_sure_share: float = 0.5
    """Below this share it is one; between, the bound is tried ..."""
    partial_shuffle_tried_sds: tuple[float, ...] = (1.0, 3.0)
    """... at so many predicted mu."""

    # bounds.partial_shuffle.lognormal
    lognormal_short_step: float = 3e-3
    """Below it second differences lose their digits and are taken from derivatives."""

    # bounds.partial_shuffle.sums.second_order
    second_order_smoothing: float = 0.03
    """Standard deviation, in units of 1/theta, of the Gaussian variable that is added to smooth the
    sum; it raises the result by 5e-4."""
    second_order_most_smoothing: float = 0.1
    """The same where the result counts little: it raises it by 0.5%."""
    moduli_smoothing: float = 0.06
    """The same where moduli are taken, which loses a tenth: it raises the result by 0.2%."""
    moduli_cut: float = 2.3
    """... frequencies are left out and bounded from so many standard deviations of it on ..."""
    moduli_skip_level: float = 1e-6
    """... and where they hold less than this share."""
    moduli_far: float = 1e4
    """From there on an estimate's difference of Bessel functions is taken from its expansion ..."""
    phases_far: float = 1e3
    """... and so is one of Mills' ratios."""
    phases_kurtosis: float = 1.5
    """From this kurtosis of the tilted sum on, one law's estimate may be ten times too large."""
    moduli_kurtosis: float = 0.3
    """From this one on an estimate by moduli is too small by as much as ..."""
    moduli_misjudged: float = 0.06
    """... this times the tilt in deviations of the sum."""
    second_order_cut: float = 3.5
    """Frequencies beyond so many standard deviations of the smoothing are left out and bounded."""
    second_order_max_nodes: int = 400_000
    """More nodes take seconds: another bound decides."""

    second_order_few_nodes: int = 3_000
    """Fewer nodes than these are all evaluated: to tell which of them matter would take longer."""
    second_order_node_units: float = 40.0
    """Units in the last place that a node's terms are off at most, before their number counts."""
    second_order_log_units: float = 32.0
    """The same of a bound by moduli, whose terms are all positive."""
    second_order_copies: float = 1e-5
    """Share of the result that periodic copies may add: a longer period takes more nodes."""
    second_order_period_steps: tuple[float, ...] = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0, 15.0)
    """Rates tried for how far up copies reach, in deviations of the tilted sum above the tilt."""
    second_order_least_deviation: float = 1e-3
    """Smaller deviations, in units of 1/theta, would carry these rates beyond any law's moments."""
    second_order_far_period: tuple[float, float] = 40.0, 12.0
    """Where no rate serves: so many 1/theta and deviations."""

    # bounds.partial_shuffle.convex_order_law
    convex_order_least_end: float = 1e-12
    """The ends of a law are at least so far from zero: an empty interval has no nodes."""
    laplace_split_round_off: float = 4e-16
    """Covers the round-off of the closed form for Laplace noise."""
    split_tail_sds: float = 5.0
    """Standard deviations over which a tail is integrated at least ..."""
    split_tail_most_sds: float = 25.0
    """... and at most; beyond it is bounded."""
    split_tail_share: float = 1e-3
    """Up to this share of what is left at the cut, times the width, the rest does not matter."""
    split_tail_first: float = 1e-4
    """The first step from the cut, as a share of the width: the tail falls fast there."""
    split_tail_inflation: float = 1.0 + 1e-7
    """Covers the round-off of the squared tail, whose second differences cancel."""
    split_newton_steps: int = 12
    """Any share of the split is valid: Newton's method comes near the best one in so many
    steps."""
    split_close: float = 1e-7
    """... or fewer, when the last one was so short."""
    split_tail_nodes: int = 80
    """Nodes of the trapezoidal sum above the cut, which is above its integral with any number."""
    profile_inflation: float = 1.0 + 1e-12
    """Covers the round-off of a local profile, a few units in the last place."""

    deficit_reach: float = 12.0
    """What an other's report may say against client 1 is followed over so many noise widths,"""
    deficit_first: float = 1e-3
    """from this share of one on, ..."""
    deficit_nodes: int = 150
    """... at so many places."""

    # bounds.partial_shuffle.sums.variance_cells
    variance_cells: tuple[float, ...] = (
        *(0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92),
        *(0.95, 0.97, 0.98, 0.99, 0.995, 1.0),
    )
    """Second moments of a term, as shares of the largest one, that are told apart."""
    variance_upper_cells: int = 16
    """... and so many above the largest variance less what tilting takes from it."""
    cells_period_sds: float = 10.0
    """Period of the sum's copies, in its deviations: they decide the tightness alone."""
    cells_last_angle: float = 1.3
    """Frequencies up to this over a term's deviation are bounded by moments ..."""
    cells_last_sds: float = 200.0
    """... and up to this over the sum's; beyond, by the smoothing alone."""
    cells_max_frequencies: int = 20_000
    """More are needed only where the sum hardly spreads: another bound decides."""
    cells_tilts_at_once: int = 4
    """One in so many candidates for the tilt is tried, then those near the best."""
    cells_largest_tilt: float = 300.0
    """The tilt times the largest atom: beyond, exponentials leave no room for sums."""
    cells_series_below: float = 0.05
    """A third-order remainder is taken from its series below this, where digits would be lost."""
    cells_round_off: float = 1e-9
    """Covers round-off, relative to a logarithm: sums of a thousand positive terms at most."""

    # bounds.partial_shuffle.prediction
    prediction_nodes: int = 140
    """Nodes on each side of zero: the prediction only chooses the cut."""
    prediction_first_node: float = 1e-3
    """The first node above zero, in the law's own scale; a tenth of it below zero."""
    prediction_max_exponent: float = 690.0
    """Larger exponentials of rate times node are cut: such a rate is never the best."""
    prediction_smallest_tail: float = 1e-45
    """A cut so far out that less is left would only unbalance the numbers."""
    prediction_smallest: float = 1e-250
    """Predictions stop here: costs are shares of them and must not vanish."""

    # bounds.partial_shuffle.bound
    third_order_cost_share: float = 0.003
    """Share of the predicted result that undoing the swap may cost."""
    third_order_goals: tuple[float, ...] = (1.0, 10.0, 100.0, 1e3, 1e4)
    """So many times the predicted result are tried for the one that costs are shares of."""
    third_order_negligible_delta: float = 1e-100
    """Where the local curve is below this nothing is computed."""
    third_order_passes: int = 2
    """So many goals are tried, each half of what the last one gave ..."""
    third_order_close: float = 3.0
    """... until the result is within this factor of its goal."""
    third_order_by_moments: float = 1.12
    """Where moments bound the sum within this factor of a normal estimate, atoms are not asked."""
    third_order_hopeless: float = 0.75
    """A form whose estimate times this is above another's result is not computed ..."""
    third_order_no_gain: float = 0.995
    """... and rings whose estimate is above this share of one law's gain too little, ..."""
    third_order_behind: float = 1.1
    """... or above this many times it at the first costs, are not tried at others, ..."""
    third_order_doubtful: float = 0.1
    """... nor, where the estimate may be far off, one whose estimate times this is."""
    third_order_slight: float = 0.003
    """A node of eta with up to this share of the main term is left to moments."""
    third_order_tight: float = 0.98
    """Where moments bound a sum of one law within this factor below a normal estimate, too."""
    third_order_rounding: float = 3e-3
    """Relative error of rounding the top law to atoms."""

    # bounds.partial_shuffle.rings
    rings: int = 5
    """Into so many rings the others are told apart by their distance from the client's mean ..."""
    rings_skew: float = 7.0
    """... denser far out by this power of epsilon ..."""
    rings_from: float = 0.02
    """... from this epsilon on: they gain about a third of epsilon, relatively."""
    saddle_close: float = 0.03
    """A line of integration near the saddle point is found to this step: any is valid ..."""
    saddle_steps: int = 25
    """... in so many steps at most."""
    likely_tilt_level: float = 1.0
    """A sum's tail falls at the rate theta at which its tilted mean is so many times 1/theta."""
    rings_tilt_step: float = 1.012
    """The line of integration is found to this factor: any is valid."""
    ring_powers: int = 60
    """Terms of the variance's series; the rest is bounded."""

    # bounds.partial_shuffle.swap
    swap_steps: tuple[float, float] = 0.3, 0.05
    """Distances of the nodes of a lognormal weight, in its standard deviations: first, rest."""
    swap_round_off: float = 1e-9
    """Covers the round-off of a weight's log moment, relative to its exponent."""
    swap_max_weight: float = 1e8
    """Weights that must be cut above this say that the bound is of no use."""
    swap_floor_reach: float = 9.0
    """Floors are tried down to so many standard deviations of a weight's logarithm ..."""
    swap_floors: int = 100
    """... at so many places."""
    swap_floor_share: float = 0.3
    """Share of each part of the costs that raising small weights to a floor may take."""
    swap_no_effect: float = 0.01
    """Where the worst weight moves log delta by less, a single node is enough ..."""
    swap_large_effect: float = 0.8
    """... and where by more, three are taken instead of two."""

    swap_least_reach: float = 1e-6
    """Others closer than this, in noise widths, count as so far away: larger is safe."""
    swap_cap_share: float = 0.8
    """Share of its part of the costs that a cap may take: m, not known yet, adds to it."""
    swap_caps: int = 180
    """Candidates for a cap ..."""
    swap_cap_sds: float = 14.0
    """... up to so many standard deviations of the weight's logarithm."""
    swap_grid_sds: tuple[float, float, float] = -36.0, -9.0, 14.0
    """Ends of the grid that a weight is spread to, in the same, and from where on it is fine: small
    weights decide where few reports must fail together."""
    swap_last_gap: float = 1e-3
    """Nodes closer to the cap than this share are left out: differences would be round-off."""
    swap_max_rate: float = 60.0
    """Larger rates, in units of one over a weight's deviation, would overflow."""
    swap_least_level: float = 1.1
    """x - log x has its minimum 1: below this level no rate keeps the goal."""
    swap_fixed_point_steps: int = 30
    """Any x is valid: x = level + log x comes near the best one in so many steps."""
    swap_exponent_round_off: float = 1e-12
    """Covers the round-off of an exponent, relative to its parts."""

    # bounds.partial_shuffle.collapsed_atoms
    collapse_slack: float = 1e-11
    """Covers the round-off of the second-order comparison, relative to the variance."""
    collapse_least_mass: float = 1e-9
    """An atom to be collapsed, or what is left above it, with less mass would be round-off."""
    collapse_round_off: float = 1e-14
    """Covers the round-off of moved atoms, relative to their values ..."""
    lift_round_off: float = 1e-15
    """... and of atoms times a factor near one."""
    collapse_max_exponent: float = 50.0
    """Exponentials that rank the candidates are cut here."""
    collapse_places: int = 50
    """Thresholds at which the stretch that is needed is estimated."""
    collapse_steps: tuple[float, ...] = (
        *(0.0, 0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.9, 1.1, 1.5, 3.0, 8.0),
    )
    """So many times the accuracy above that estimate are tried at once ..."""
    collapse_likely_steps: float = 0.4
    """... and so many are mostly enough."""
    collapse_cells: int = 100
    """Cells on which the comparison is certified."""
    collapse_stretches: tuple[float, ...] = (
        1.0,
        1.006,
        1.012,
        1.02,
        1.03,
        1.045,
        1.06,
        1.08,
        1.1,
        1.13,
        1.17,
        1.22,
    )
    """Candidates for how far the atoms are moved apart, dense where small."""
    collapse_stretch_step: float = 2e-3
    """The stretch is found to this accuracy: finer gains nothing that is seen."""
    collapse_max_stretch: float = 1.5
    """Candidates that need more are given up."""

    # bounds.partial_shuffle.profile_bound
    convex_order_cost_share: float = 0.005
    """Share of the predicted result that undoing the swap may cost."""
    convex_order_error: float = 2e-3
    """Asked of the engine for the main term."""
    convex_order_rounding: float = 6e-4
    """Asked of the rounding of a smooth law to atoms, a third of that."""
    convex_order_bends: int = 300
    """Nodes of the weight's law; a piecewise linear profile with fewer bends is taken as it is."""
    convex_order_caps: int = 60
    """Candidates for the cap of a weight."""
    convex_order_min_others: int = 5
    """With fewer other reports the costs exceed what is gained."""

    # bounds.partial_shuffle.profile
    profile_max_epsilon: float = 60.0
    """Local profiles are read up to here (nats): beyond, a report protects nothing."""
    profile_nodes: int = 400
    """Points at which a profile given as a function is read; chords join them."""
    profile_smallest_delta: float = 1e-30
    """A profile is followed down to here: the rest counts as certain loss."""
    profile_epsilon_step: float = 1e-10
    """A local epsilon is found to this accuracy, relatively, and rounded up."""

    # bounds.partial_shuffle.profile_curve
    profile_curve_step: float = 1e-3
    """An epsilon is found where the curve is within this relative distance of its target."""
    profile_predicted_deltas: tuple[float, float] = 1e-12, 0.99
    """delta(0) is taken into this range for the predicted mu, a scale only."""
