#!/usr/bin/env bash
# All tests of the workspace, the tidy test included.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --workspace
