#!/usr/bin/env bash
# The big counts of the disasters: kills, losses of power, full disks, seeds. Each part is kept in a file when it has
# passed, so that a run that was stopped goes on where it was; remove the folder to begin anew.
# usage: chaos/nightly.sh [FOLDER]        (root for losses of power and full disks; they are skipped otherwise)
set -euo pipefail
cd "$(dirname "$0")/.."
done_in="${1:-target/nightly}"
mkdir -p "$done_in"

KILLS=1000 POWER_LOSSES=200 FULL_DISKS=50 SEEDS=1000
BATCH=50

part() {
    local name="$1"
    shift
    if [ -e "$done_in/$name" ]; then
        echo "== $name: done before"
        return
    fi
    echo "== $name"
    "$@" >"$done_in/$name.log" 2>&1 || { tail -40 "$done_in/$name.log"; echo "== $name failed; see $done_in/$name.log" >&2; exit 1; }
    touch "$done_in/$name"
}

test_of() { cargo test --release --package "$1" --test "$2" -- --nocapture "$3"; }

for ((at = 0; at < KILLS; at += BATCH)); do
    HOLDFAST_KILLS=$BATCH part "kills-$at" test_of holdfast-node disaster nothing_acknowledged
done
for ((at = 0; at < POWER_LOSSES; at += BATCH)); do
    HOLDFAST_POWER_LOSSES=$BATCH part "power-$at" test_of holdfast-storage power nothing_acknowledged
done
HOLDFAST_FULL_DISKS=$FULL_DISKS part full-disks test_of holdfast-storage power a_full_file_system
part damage cargo test --release --package holdfast-chaos --test damage
for ((at = 1; at < SEEDS; at += BATCH)); do
    part "seeds-$at" cargo run --release --package holdfast-chaos -- sweep --from "$at" --count "$BATCH"
done
echo "== all passed"
