// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestRunAttributes(t *testing.T) {
	place := func(id string, numbers ...int64) (attributes []gpuevent.Attr) {
		if id != "" {
			attributes = append(attributes, gpuevent.Str(semconv.CUDARunID, id))
		}
		for i, n := range numbers {
			key := []string{semconv.CUDARunRank, semconv.CUDARunLocalRank, semconv.CUDARunSize}[i]
			attributes = append(attributes, gpuevent.I(key, n))
		}
		return attributes
	}
	slurm := map[string]string{
		"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "9",
		"SLURM_STEP_NUM_TASKS": "4",
	}
	with := func(more map[string]string) map[string]string {
		all := map[string]string{}
		for _, m := range []map[string]string{slurm, more} {
			for k, v := range m {
				all[k] = v
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		environment map[string]string
		want        []gpuevent.Attr
	}{
		"no launcher": {nil, nil},
		"torchrun": {
			map[string]string{"TORCHELASTIC_RUN_ID": "job7", "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"},
			place("job7", 9, 1, 16),
		},
		"torchrun without an identifier": {
			map[string]string{"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
			place("", 0, 0, 2),
		},
		"torchrun in a SLURM step": {
			with(map[string]string{"TORCHELASTIC_RUN_ID": "none", "RANK": "25", "LOCAL_RANK": "1", "WORLD_SIZE": "32"}),
			place("4711.0", 25, 1, 32),
		},
		"torchrun on one host": {
			map[string]string{"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
			place("gpu-host:29500", 0, 0, 2),
		},
		"MASTER_ADDR": {
			map[string]string{"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"},
			place("job-master-0:23456", 1, 0, 2),
		},
		"MASTER_ADDR of IPv6": {
			map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "fd00::1", "MASTER_PORT": "1"}, []gpuevent.Attr{
				gpuevent.Str(semconv.CUDARunID, "[fd00::1]:1"), gpuevent.I(semconv.CUDARunRank, 1), gpuevent.I(semconv.CUDARunSize, 2),
			},
		},
		"MASTER_ADDR of SLURM": {with(map[string]string{"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1"}), place("4711.0", 3, 1, 4)},
		"one process": {
			map[string]string{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, place("", 0, 0, 1),
		},
		"RANK of another program": {map[string]string{"RANK": "5"}, nil},
		"Open MPI": {
			map[string]string{
				"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8",
				"PMIX_NAMESPACE": "prterun-node1-812@1",
			},
			place("prterun-node1-812@1", 2, 0, 8),
		},
		"MPICH": {
			map[string]string{"PMI_RANK": "1", "MPI_LOCALRANKID": "1", "PMI_SIZE": "2"}, place("", 1, 1, 2),
		},
		"SLURM step": {slurm, place("4711.0", 3, 1, 4)},
		"SLURM batch script": {
			map[string]string{"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, nil,
		},
		"no number": {map[string]string{"RANK": "first", "WORLD_SIZE": "2"}, nil},
		"negative":  {map[string]string{"RANK": "-1", "WORLD_SIZE": "2"}, nil},
		"rank out of the run": {
			map[string]string{"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, place("", 2, 0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := runAttributes(func(key string) string { return c.environment[key] }, "gpu-host")
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("the user's attributes win", func(t *testing.T) {
		for key, value := range map[string]string{
			"TORCHELASTIC_RUN_ID": "job7", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2",
		} {
			t.Setenv(key, value)
		}
		cfg := Config{Resource: []gpuevent.Attr{gpuevent.Str(semconv.CUDARunID, "mine")}}
		DetectProcess(&cfg, "")
		assert.Contains(t, cfg.Resource, gpuevent.Str(semconv.CUDARunID, "mine"))
		assert.NotContains(t, cfg.Resource, gpuevent.Str(semconv.CUDARunID, "job7"))
		assert.Contains(t, cfg.Resource, gpuevent.I(semconv.CUDARunRank, 1))
	})
}
