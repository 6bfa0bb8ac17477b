#!/usr/bin/env bash
# Grades the workspace that the agent left. Harbor mounts this folder for the verifier alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec "${PYTHON:-python3}" grade.py "${WORKSPACE:-/workspace}" "${REWARD_FILE:-/logs/verifier/reward.json}"
