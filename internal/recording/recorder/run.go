// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"net"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// launchers lists the environment variables in which launchers of distributed programs state the
// place of a process. The innermost launcher comes first: srun often starts torchrun, and then
// SLURM's rank counts nodes. A launcher is used if all variables of present are set.
//
// Sources: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables,
// https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html, Hydra of MPICH and Intel
// MPI (PMI_*, MPI_LOCALRANKID),
// https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES. A SLURM batch script
// also has a rank, but no step; it is not a rank of a run.
var launchers = []struct {
	present                []string
	rank, local, worldSize string
}{
	{[]string{"WORLD_SIZE"}, "RANK", "LOCAL_RANK", "WORLD_SIZE"},
	{nil, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
	{nil, "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
	{[]string{"SLURM_STEP_ID"}, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"},
}

// runAttributes returns the run's identifier, rank, local rank and size, as far as the launcher
// states them. getenv returns the value of an environment variable, or "". host is the name of this host, or "".
func runAttributes(getenv func(string) string, host string) []gpuevent.Attr {
	var attributes []gpuevent.Attr
	if id := runID(getenv, host); id != "" {
		attributes = append(attributes, gpuevent.Str(semconv.CUDARunID, id))
	}
next:
	for _, l := range launchers {
		for _, name := range l.present {
			if getenv(name) == "" {
				continue next
			}
		}
		rank, err := strconv.ParseInt(getenv(l.rank), 10, 32)
		if err != nil || rank < 0 {
			continue
		}
		attributes = append(attributes, gpuevent.I(semconv.CUDARunRank, rank))
		if n, err := strconv.ParseInt(getenv(l.local), 10, 32); err == nil && n >= 0 {
			attributes = append(attributes, gpuevent.I(semconv.CUDARunLocalRank, n))
		}
		if n, err := strconv.ParseInt(getenv(l.worldSize), 10, 32); err == nil && n > rank {
			attributes = append(attributes, gpuevent.I(semconv.CUDARunSize, n))
		}
		break
	}
	return attributes
}

// runID returns the identifier that all ranks of the run share, or "" if no launcher gives one.
func runID(getenv func(string) string, host string) string {
	// torchrun sets "none" if the user gives no --rdzv-id.
	if id := getenv("TORCHELASTIC_RUN_ID"); id != "" && id != "none" {
		return id
	}
	// SLURM writes a step as JOB.STEP. The batch script itself belongs to no step.
	if job, step := getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"); job != "" && step != "" {
		return job + "." + step
	}
	if id := getenv("PMIX_NAMESPACE"); id != "" { // Open MPI 4 and later
		return id
	}
	// The rendezvous of PyTorch's env:// is the only thing that ranks without a launcher of their own share. A later
	// run can have the same one: of several sessions of a rank, the analysis uses the latest.
	address := getenv("MASTER_ADDR")
	if size, err := strconv.Atoi(getenv("WORLD_SIZE")); err != nil || size < 2 || getenv("RANK") == "" || address == "" {
		return ""
	}
	if ip := net.ParseIP(address); address == "localhost" || ip.IsLoopback() {
		address = host
	}
	if address == "" {
		return ""
	}
	return net.JoinHostPort(address, getenv("MASTER_PORT"))
}
