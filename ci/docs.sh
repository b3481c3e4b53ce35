#!/usr/bin/env bash
# The documentation builds and all its links lead somewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" cargo doc --workspace --no-deps
