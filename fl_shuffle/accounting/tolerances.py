"""Where exactness ends and effort is limited: every tuning constant of the accountant, with its
reason.

Most decide how tight a number is and how long it takes, and what a cut-off leaves out is always
added to the answer. Those named inflation, safety, error or cut-off cover round-off or what was
left out: they may be raised, never lowered."""

from __future__ import annotations

from dataclasses import dataclass

from fl_shuffle.accounting.partial_shuffle_tolerances import PartialShuffleTolerances


@dataclass(frozen=True)
class Tolerances(PartialShuffleTolerances):
    """The one object that holds them; `TOLERANCES` is the one in use.

    The partial-shuffle bound's are inherited."""

    # engine.fourier
    fourier_skip_level: float = 1e-11
    """Nodes whose terms together stay below this share are bounded, not summed."""
    fourier_block: int = 64
    """Nodes looked at together when those that matter are selected."""
    fourier_cells_at_once: int = 1 << 20
    """Atoms times nodes held in memory at a time (16 MiB of complex numbers)."""
    fourier_few_atoms: int = 64
    """Up to this many atoms every node is evaluated by itself: splitting would not pay."""
    fourier_strides: tuple[int, int, int, int, int] = (1, 16, 64, 256, 1024)
    """Candidates for how nodes are split; 1 takes every node by itself."""

    # engine.stop_loss
    negligible_delta: float = 1e-140
    """No guarantee is asked this far out: finer is not computed."""
    negligible_blanket_mass: float = 1e-100
    """Blanket masses up to this are dropped, which can only raise delta."""
    rare_positive_draws: float = 0.05
    """Fewer expected positive draws than this: outcomes without any are left out from the
    start."""
    log_vanishing_delta: float = -640.0
    """Below e^-640 (1e-278) the Chernoff bound E(S)_+ <= E e^(theta S) / (e theta) is enough."""
    stop_loss_few_outcomes: int = 150_000
    """With no more outcomes than this they are all added up: as fast as the integral, and
    exact."""
    stop_loss_max_work: float = 1e8
    """Nodes times nanoseconds for each, with `best_effort`: a tenth of a second."""
    stop_loss_patient_work: float = 2e9
    """The same where a refusal is the alternative: seconds."""
    stop_loss_error: float = 1e-6
    """Allowed, unless told, to laws given by atoms ..."""
    stop_loss_rounded_error: float = 2e-4
    """... and to those that must be rounded first: finer would be felt."""

    # engine.convex_rounding
    rounding_max_atoms: int = 30_000
    """A law rounded to more atoms than this would take the engine seconds."""
    rounding_log_negligible: float = -645.0
    """The engine answers such bounds by Chernoff alone: no refinement is needed."""
    rounding_large_law: int = 8_000
    """Atomic laws larger than this are rounded too: the engine's time grows with their size."""
    rounding_step: float = 1e-3
    """Each pass refines towards this share of the last one's inflation: coarse cells say little
    about where fine ones are needed."""

    # engine.blanket_counts
    pmf_inflation: float = 1.0 + 1e-11
    """Covers the round-off of the binomial probabilities, a few hundred units in the last
    place."""

    # engine.monotone_search
    search_log_tolerance: float = 2e-4
    """The epsilon searches stop once the curve is within this relative distance of the target."""
    search_max_evaluations: int = 200
    """A monotone search needs a dozen: so many mean that the curve is not monotone."""
    search_fitted_steps: int = 4
    """So many first steps fit a Gaussian curve; later ones interpolate between what was found."""

    # engine.composition
    lattice_cells_per_sd: float = 12.0
    """The lattice is at least this many times finer than one round's spread of the privacy
    loss."""
    lattice_window_sds: float = 20.0
    """Half-width of the lattice's window, in standard deviations of the composed loss."""
    lattice_max_cells: int = 1 << 20
    """Cells of the largest lattice: more take seconds and gain nothing."""
    tilt_ladder: float = 1.25
    """Ratio of neighbouring tilts tried for the window."""
    tilt_ladder_down: int = 40
    """So many steps of the ladder below the natural tilt are tried."""
    markov_ladder: float = 2.0
    """Ratio of neighbouring rates of Markov's inequality."""
    markov_range: tuple[float, float] = 0.003, 30.0
    """Rates of Markov's inequality, in units of 1 / sd, for what lies outside the window;
    powers of the ladder, so that their moments are computed once for many rounds."""
    lattice_rare_mass: float = 1e-60
    """Atoms below this become certain loss: large losses would only narrow the choice of
    tilts."""
    lattice_max_loss: float = 600.0
    """Larger privacy losses count as certain: their exponentials overflow."""
    lattice_safety: float = 1.0 + 1e-9
    """Relative inflation that covers the round-off of the convolution's bookkeeping."""

    # bounds.laplace_mechanism
    laplace_pair_nodes: int = 1500
    """Points of the exact one-round profile that the composed pair connects."""
    laplace_max_ratio: float = 500.0
    """Larger local budgets count as no protection at all."""

    # bounds.sum_release
    sum_smoothing: float = 4.0
    """So many grid steps of smooth noise between a sum and its grid: what can still be told of the
    grid is below e^(-2 pi^2 4^2), 10^-137 a report and coordinate. May be raised, never lowered."""
    sum_lattice_loss: float = 1e-90
    """Added to delta for all reports, coordinates and rounds together: up to 10^46 of them."""
    sum_delta_share: float = 1.0 - 1e-11
    """Share of delta that is asked of the closed formula: the rest covers `sum_lattice_loss` and
    the formula's round-off, for every delta from 10^-78 on."""
    sum_inflation: float = 1.0 + 1e-9
    """Covers the round-off of adding up the squares of up to 10^6 rounds."""

    # laws.outcome_pair
    outcome_merge_tolerance: float = 1e-11
    """Losses and ratios this close count as the same outcome (see `OutcomePair.merged`)."""

    # laws.continuous
    witness_cells: int = 600
    """Cells of the partition through which a density's lower bound looks at it."""

    # laws.products
    product_max_outcomes: int = 300_000
    """More kinds of joint report than this do not fit the memory."""
    product_laplace_cells: tuple[int, int, int, int, int, int] = (0, 400, 64, 20, 12, 8)
    """Cells per side of each Laplace part, by the number of such parts."""
    product_max_cases: int = 4096
    """More pairs of joint inputs than this take minutes."""

    # bounds.worst_client
    exact_budget_classes: int = 16
    """Up to this many distinct budgets each is tried as the differing client's."""
    budget_groups: int = 64
    """The others' budgets are merged into so many groups at most, each at its least favourable
    end."""

    # rounds.equal_rounds
    equal_rounds_nodes_per_spread: float = 130.0
    """Points of the one-round curve per spread of its privacy loss."""
    equal_rounds_spreads: float = 9.0
    """The curve is followed densely over so many spreads."""
    equal_rounds_fewer: float = 55.0
    """Points per standard deviation of one round's loss: chords between them add 1e-5 to
    epsilon. Few rounds need them further out and do with fewer."""
    equal_rounds_deepest: float = 5.0
    """Points are dense around a tail of up to so many standard deviations of the whole sum."""
    equal_rounds_dense: float = 2.1
    """Points are dense over so many spreads besides."""
    equal_rounds_tail_points: int = 12
    """Points beyond the followed part, up to the local epsilon."""

    # rounds.round_library
    round_nodes_per_sd: float = 5.0
    """Points of a round's curve per standard deviation of its privacy loss (0.4% in epsilon)."""
    round_relative_error: float = 2e-3
    """Asked of the engine for every point of a round's curve."""
    round_dense_sds: float = 5.0
    """Within so many standard deviations the points are evenly spaced."""
    round_max_stalled: int = 4
    """So many points without a smaller certified value end the curve; what is left is certain
    loss."""
    round_far_sds: float = 4.5
    """Further out than this the points matter less and are computed more coarsely."""
    round_far_relative_error: float = 0.1
    """Asked of the engine for the far points."""
    round_enough_delta: float = 1e-12
    """Below this the curve is no longer computed but bounded by its last value and the local
    one."""
    round_floor_delta: float = 1e-16
    """A curve is followed down to here; the rest is counted as certain loss."""
    few_balls: int = 8
    """With more balls than this a large batch is accounted through its total number of hiders."""
    max_local_pair_ratio: float = 12.0
    """Moves of more noise widths than this get no dominating pair: their losses overflow."""
    round_thin_after: int = 4
    """Beyond `DENSE` standard deviations the distance of points doubles after so many of them."""
    round_exact_reports: int = 128
    """Batches with at most so many others are accounted exactly; larger ones share a type with
    some."""

    # bounds.vector
    min_blanket_reports: float = 0.1
    """With fewer expected blanket reports near the centre no credit is computed: it is small."""
    min_blanket_reports_far: float = 3.0
    """The same further out, where it is slow as well."""
    near_reference: float = 0.3
    """Noise widths: nearer to the blanket's centre than this the smaller blanket is enough."""
    max_mu_share: float = 0.95
    """A predicted mu above this share of the local one is no gain: likelihood ratios vary too
    much."""
    max_law_exponent: float = 500.0
    """Larger exponents of the amplification law would overflow."""
    max_concentration: float = 0.01
    """Share of the blanket reports that may be given up to replace their number by a fixed
    one."""
    heavy_tail_distance: float = 0.4
    """From this distance on (noise widths) the law has a heavy tail ..."""
    few_blanket_reports: float = 200.0
    """... and with fewer blanket reports than this its terms are dear: 2% of delta is allowed."""
    vector_fallback_error: float = 2e-3
    """The other accuracy asked of the engine when it refuses the first."""
    negligible_local_delta: float = 1e-40
    """Where the local curve is below this there is nothing left to amplify."""
    vector_table_error: float = 1e-3
    """From this relative error on, few blanket reports are looked up in a table
    (`few_blankets`)."""
    vector_relative_error: float = 5e-4
    """Asked of the engine, relative to delta, where the caller names nothing else."""
    vector_clearly_better: float = 0.8
    """The blanket is computed unless the other bound is below this share of its prediction."""
    vector_faint_batch: int = 100
    """Up to so many reports of a faint client the blanket alone is computed: it is many times
    faster and says more."""
    vector_faint_move: float = 0.3
    """A client is faint if replacing its unit moves its mean by at most so many noise widths."""
    vector_table_reports: int = 256
    """The table of few blanket reports reaches to so many; larger tables are not built."""
    vector_table_tail: float = 1e-18
    """Where the Gaussian law of the table is cut: below what any target resolves."""

    # rounds.planning
    plan_relative_error: float = 5e-3
    """A plan's scale is found to this accuracy; the run's own accounting is finer."""
    plan_many_rounds: int = 20
    """From so many rounds on the bulk of a round's loss decides, below them its tail."""
    plan_coarse_nodes: float = 2.5
    """Points per standard deviation for the cost of given reports ..."""
    plan_fine_nodes: float = 5.0
    """... where a plan over many rounds is certified, as in the run itself ..."""
    plan_few_rounds_nodes: float = 1.25
    """... and over few rounds: more of them lower the certified epsilon by about 1%."""
    plan_dense_sds: float = 3.0
    """Points thin out beyond so many standard deviations over many rounds ..."""
    plan_few_rounds_dense_sds: float = 1.0
    """... or so many to plan over few rounds."""
    plan_floor_share: float = 1e-4
    """A round's curve is followed down to this share of what delta leaves to one round ..."""
    plan_few_rounds_floor_share: float = 2e-3
    """... or this, to plan over few rounds."""
    plan_few_rounds_step: float = 0.62
    """Share of the predicted change of the scale that is tried there: only saves trials."""
    plan_one_round_scale: float = 5e-4
    """The scale of a plan for a single round is found to this relative accuracy."""
    plan_close: float = 0.01
    """A certified cost within this relative distance below its target ends the search ..."""
    plan_few_rounds_close: float = 0.015
    """... or this over few rounds: there it moves the scale by a sixth of that."""
    plan_max_trials: int = 8
    """Trials of a scale at most: the curve is smooth, five are usual."""
    plan_sum_scale: float = 1e-5
    """The scale of a plan for sums is found to this relative accuracy."""
    plan_smallest_share: float = 1e-4
    """Noise below this share of what suffices without a shuffler is not searched."""

    # attacks.chosen_vector_datasets
    dataset_cells: int = 1500
    """Cells of the line through which a chosen dataset's reports are seen."""
    dataset_reach: float = 9.5
    """The cells cover so many noise widths on either side."""
    dataset_relative_errors: tuple[float, float] = (2e-3, 5e-2)
    """Asked of the engine, in this order, until one succeeds."""
    dataset_max_shift: float = 12.0
    """Reports more than twice so many noise widths apart give themselves away: nothing is
    computed."""

    # attacks.likelihood_ratio
    attack_nearly_best: float = 0.8
    """Data sets whose signal is at least this share of the best one's are all evaluated."""
    attack_cells: int = 400
    """Cells of the line on which the attack's score is computed."""
    attack_largest_score: float = 50.0
    """Scores are cut here: a single report that says more decides alone."""
    attack_smoothing: float = 0.03
    """Standard deviation of the test's own noise, at least this share of the sum's, at most
    twice."""
    attack_period_sds: float = 24.0
    """Period of the lattice, in standard deviations of the sum."""
    attack_gauss_reach: float = 8.5
    """Beyond this many deviations the transform of the test's noise is below 1e-15."""
    attack_cut_off: float = 1e-15
    """What lies beyond the transform's reach, added to the error."""
    attack_negligible: float = 1e-18
    """Frequencies that weigh less than this are left out and counted as error."""
    attack_thresholds: int = 400
    """Thresholds at which the attack's error rates are read."""
    attack_cell_error: float = 1e-14
    """Allowance for the relative error of a cell's probability."""

    # attacks.vector_data_sets
    attack_size_cells: int = 12
    """Cells of a report's distance from the line, beside those along it."""
    attack_corner_line: int = 120
    """Cells along the line where one corner is compared with others ..."""
    attack_corner_cells: int = 20
    """... and places of the corner that are compared."""
    attack_few_groups: int = 64
    """Up to so many groups of others the cells are fine ..."""
    attack_many_groups: int = 1000
    """... up to so many coarse; beyond, nothing is claimed."""
    attack_coarse_cells: int = 120
    """Coarse cells along the line ..."""
    attack_coarse_size_cells: int = 6
    """... and of the distance from it."""
    attack_size_reach: float = 6.0
    """Distances are told apart within so many deviations of the noise's own."""
    attack_most_across: int = 100_000
    """So many coordinates across the line are used: up to there gamma integrals are good to
    1e-13."""
    attack_unseen: float = 1e-22
    """Cells less likely than this are left out and counted as error."""
    attack_size_cell_error: float = 1e-11
    """Allowance for the relative error of a cell's probability where distances are used."""

    # attacks.sum_attack
    sum_attack_coarsest: float = 0.125
    """Where a grid is coarser than this share of its noise scale no test is claimed."""
    sum_attack_log_missed: tuple[float, ...] = (-24.0, -36.0, -60.0)
    """Logarithms, one of which is tried after the other, of the probability, times e^epsilon, that
    rounding moves the test by more than is allowed for."""

    # accountant
    nearly_local: float = 0.95
    """Recognition that reaches this share of the local epsilon leaves nothing for another
    attack."""
    listed_classes: int = 64
    """With more classes than this a round lists only some of the most exposed; the worst client's
    epsilon and the totals are over every client."""

    # rounds.declared_round
    declared_round_inflation: float = 1.0 + 1e-7
    """Covers the round-off of the sum over a declared report's losses."""

    # rounds.shuffled_view
    max_balls_told_apart: int = 20
    """So many balls at most are told apart among clients with the same noise; others count
    larger."""

    # laws.gaussian_mechanism
    newton_near: float = 1e-12
    """Newton's answer is tried so far above and below, relatively, before bisection."""
    newton_steps: int = 12
    """Newton's method converges in five: more steps mean that bisection is due."""
    inverse_safety: float = 1e-10
    """Relative safety added to every inverse: above round-off, below anything that matters."""

    # bounds.few_blankets
    few_blankets_window_sds: float = 9.0
    """The window reaches so many standard deviations of the tilted sum to either side of zero."""
    few_blankets_quiet: float = 1e-19
    """Frequencies at which the sum's transform is smaller are left out, and this is added for
    them."""
    few_blankets_safety: float = 1.0 + 1e-9
    """Relative inflation that covers the round-off of the sums over the lattice."""
    few_blankets_max_lattice: int = 1 << 16
    """A longer lattice costs more than the engine's single numbers would."""
    few_blankets_first_nodes: int = 400
    """Nodes of the rough law that only finds the tilt."""

    # bounds.blanket_moments
    closed_form_inflation: float = 1.0 + 1e-12
    """Covers the round-off of closed formulas, a few units in the last place."""

    # attacks.chosen_datasets
    dataset_max_counted: int = 1_000_000
    """Outcomes of a binomial count that are added up; leaving the rest out lowers a lower
    bound."""

    # queries.bound_query
    query_profile_points: int = 300
    """Points at which a Gaussian profile is handed over; chords between them lie above it."""


TOLERANCES = Tolerances()
