#!/usr/bin/env bash
# The suite that every fabric passes, on optimised code.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --release -p pando-fabric-local -p pando-fabric-net
