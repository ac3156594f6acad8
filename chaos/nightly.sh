#!/usr/bin/env bash
# The big counts of the disasters: kills, losses of power, full disks, seeds. Each part is kept in a file when it has
# passed, so that a run that was stopped goes on where it was; remove the folder to begin anew.
# usage: chaos/nightly.sh [FOLDER]
# A shorter one, as `cargo test` does it: KILLS=20 POWER_LOSSES=5 FULL_DISKS=3 SEEDS=50 PROFILE=dev chaos/nightly.sh FOLDER
# Losses of power and full disks need root, a loop device and mkfs.ext4; where one is missing they say so and are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
done_in="${1:-target/nightly}"
mkdir -p "$done_in"

KILLS="${KILLS:-1000}" POWER_LOSSES="${POWER_LOSSES:-200}" FULL_DISKS="${FULL_DISKS:-50}" SEEDS="${SEEDS:-1000}"
PROFILE="${PROFILE:-release}"
BATCH=50
least() { echo $(($1 < $2 ? $1 : $2)); }

part() {
    local name="$1"
    shift
    if [ -e "$done_in/$name" ]; then
        echo "== $name: done before"
        return
    fi
    echo "== $name"
    "$@" >"$done_in/$name.log" 2>&1 || { tail -40 "$done_in/$name.log"; echo "== $name failed; see $done_in/$name.log" >&2; exit 1; }
    # What a test counted, and why a part of it was skipped.
    grep -hE '^(skipped|[0-9]+ kills|loss |round )' "$done_in/$name.log" | tail -3 || true
    touch "$done_in/$name"
}

test_of() { cargo test --profile "$PROFILE" --workspace --test "$1" -- --nocapture "$2"; }

for ((at = 0; at < KILLS; at += BATCH)); do
    HOLDFAST_KILLS=$(least $BATCH $((KILLS - at))) part "kills-$at" test_of disaster nothing_acknowledged
done
for ((at = 0; at < POWER_LOSSES; at += BATCH)); do
    HOLDFAST_POWER_LOSSES=$(least $BATCH $((POWER_LOSSES - at))) part "power-$at" test_of power nothing_acknowledged
done
HOLDFAST_FULL_DISKS=$FULL_DISKS part full-disks test_of power a_full_file_system
part damage test_of damage ""
for ((at = 1; at <= SEEDS; at += BATCH)); do
    part "seeds-$at" cargo run --profile "$PROFILE" --bin holdfast-chaos -- sweep --from "$at" --count "$BATCH"
done
echo "== all passed"
