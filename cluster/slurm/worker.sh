#!/usr/bin/env bash
#SBATCH --job-name=dmo-worker
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=01:00:00
# sbatch cluster/slurm/worker.sh scheduler.json
# Starts one worker process per core. The workers stop before the time limit and send their results to other workers.
exec dask worker --scheduler-file "$1" --nworkers "${SLURM_CPUS_PER_TASK:-1}" --nthreads 1 --lifetime 55m --lifetime-stagger 4m
