// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Unavailable returns engines of a process in which nothing can be recorded: each window that is
// asked for says why.
func Unavailable(why cupti.Status) deep.Engines { return unavailableEngines{why} }

type unavailableEngines struct{ why cupti.Status }

func (unavailableEngines) Ready() bool { return true }

func (u unavailableEngines) Arm(deep.Engine, uint64) (deep.Session, error) {
	return nil, refusal(u.why)
}
