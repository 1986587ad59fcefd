#!/usr/bin/env bash
# Deploy a federation on this machine, with a separate shuffler, and read what a client has spent.
#
# Run it: examples/12_deploy_localhost.sh [FOLDER]      (default: clinics; a new folder)
#
# `fl-shuffle new FOLDER --deploy` writes a Flower app and a script, deploy.sh. The script starts a
# SuperLink, two SuperNodes, and a shuffler, each a process of its own as on separate machines. It
# runs two rounds, stops the run, and resumes it to the fourth round. All processes end with it.
# Connections are not encrypted, and one user owns all parties: this shows the steps, it protects
# nobody. On real machines: docs/how-to/deploy.md and docs/how-to/separate-shuffler.md.
#
# Expected output, in which deploy.sh prints more:
#
#     1. The shuffler's operator enrolls two sites and hands each its credentials.
#     2. The SuperLink, and a SuperNode at each site.
#     3. A run of four rounds, stopped after the second.
#     4. The same command with resume continues after the last round that the ledger counts.
#     report: clinics/deployment/run/report.html
set -euo pipefail

folder=${1:-clinics}

# All of these come with fl-shuffle. A virtual environment that is not active hides them.
for program in python fl-shuffle flwr flower-superlink flower-supernode; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is not on the PATH: activate the environment of fl-shuffle, for example" \
            "source .venv/bin/activate" >&2
        exit 1
    fi
done

# Refuses a folder that exists, with a message that says so.
fl-shuffle new "$folder" --deploy
"$folder/deploy.sh"

# The ledger lies with the server. Its numbers are those of a simulation with the same rounds: the
# accountant counts reports, wherever they come from.
fl-shuffle ledger "$folder/deployment/run" --client 3
echo "report: $folder/deployment/run/report.html"
