#!/usr/bin/env bash
#SBATCH --job-name=dmo
#SBATCH --cpus-per-task=2
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
# sbatch cluster/slurm/driver.sh fit kgha features.zarr model.zarr --checkpoint checkpoints
# sbatch cluster/slurm/driver.sh pipelines/kgha_annotation.py --work work
# Five minutes before its time limit, the job stops dmo (exit code 143) and queues itself again, so that dmo resumes. The
# output is appended to the same file.
set -uo pipefail
case ${1-} in
  *.py) python "$@" --scheduler slurm & ;;
  *) dmo "$@" --scheduler slurm & ;;
esac
child=$!
trap 'kill -TERM "$child"' TERM
wait "$child"
code=$?
if kill -0 "$child" 2>/dev/null; then wait "$child"; code=$?; fi
if [ "$code" -eq 143 ] || [ "$code" -eq 3 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
