"""Trackers: what a run tells (`fl_shuffle.runs.events`), handed to TensorBoard, MLflow or W&B.

A tracker is called with every event and closed at the end, whatever that is:

    with tracking(["mlflow", "my_module:make_tracker"]) as tracker:
        fs.simulate(config, on_event=tracker)

They are told what the run directory says, and no more: settings, each round's metrics and
epsilons, the final numbers. Where a run publishes no times (`run.entropy = "system"`) they get
none.
"""

from fl_shuffle.trackers.protocol import TRACKERS, Tracker, tracking

__all__ = ["TRACKERS", "Tracker", "tracking"]
