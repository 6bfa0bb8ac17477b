#!/usr/bin/env bash
# The expert's cells, one process each, as the environment runs them.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "${WORKSPACE:-/workspace}"
for cell in "$here"/cells/*; do
    case $cell in
    *.py) PYTHONPATH=$PWD "${PYTHON:-python3}" "$cell" ;;
    *.sh) bash "$cell" ;;
    esac
done
