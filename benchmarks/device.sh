#!/usr/bin/env bash
# Measure what a GPU changes, in at most twelve minutes:
#   benchmarks/device.sh [--quick] [FOLDER]
# Each part has a limit of seconds and a file NAME.txt in FOLDER, written as soon as it ends. A later
# call runs the parts that have none; a training goes on where it stopped. --quick tries all parts on
# a CPU, at small sizes, in one to three minutes.
set -u
cd "$(dirname "$0")/.."
quick=
if [ "${1:-}" = --quick ]; then quick=--quick; shift; fi
out=${1:-runs/device}
mkdir -p "$out"
failed=0

part() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 left=$((end - $(date +%s)))
  shift 2
  if [ -e "$out/$name.txt" ]; then return; fi
  if [ -n "$quick" ] || [ "$left" -lt "$limit" ]; then limit=$left; fi
  if [ "$limit" -gt 0 ] && timeout "$limit" "$@" > "$out/$name.part" 2> "$out/$name.log"; then
    mv "$out/$name.part" "$out/$name.txt"
    echo "== $name: done"
  else
    echo "== $name: not finished; see $out/$name.log"
    failed=1
  fi
}

pairs="4096 16384 65536 262144" precisions="highest default BF16_BF16_F32" batches="512 2048 8192 16384"
preset=quora_sdml seeds="0 1 2" changes="highest default" end=$(($(date +%s) + 720))
if [ -n "$quick" ]; then
  end=$((end + 2880)) pairs=64 precisions=highest batches=8 preset=synthetic_sdml:smoke seeds=0 changes=highest
fi

for size in $pairs; do
  for precision in $precisions; do
    for both in "" --both; do
      part "loss-$size-$precision$both" 60 python -m benchmarks.loss --rounds 1 \
        --sizes "$size" --precisions "$precision" $both
    done
  done
done
for size in $batches; do
  for precision in $changes; do
    part "step-$size-$precision" 60 python -m benchmarks.train $quick --preset $preset \
      --sizes "$size" --set "precision=$precision"
  done
done
for seed in $seeds; do
  for precision in $changes; do
    part "$preset-$precision-$seed" 120 python -m experiments.main --config=$preset \
      --config.seed="$seed" --config.precision="$precision" --workdir="$out/run-$precision-$seed"
  done
done
part encode 120 python -m benchmarks.encode --quick
part profile 60 python -m benchmarks.train $quick --preset $preset --sizes "${batches##* }" \
  --profile "$out/profile"
exit $failed
