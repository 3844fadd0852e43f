// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Unavailable returns engines of a process in which nothing can be recorded: each window that is
// asked for says why.
func Unavailable(why cupti.Status) deep.Engines { return unavailableEngines{why} }

type unavailableEngines struct{ why cupti.Status }

func (unavailableEngines) Ready() bool                        { return true }
func (unavailableEngines) PausesActivity(deep.Engine) bool    { return false }
func (unavailableEngines) Pause(context.Context) error        { return nil }
func (unavailableEngines) Resume(context.Context, bool) error { return nil }

func (r unavailableEngines) Arm(context.Context, deep.Engine, deep.Options) (deep.Session, error) {
	return nil, refusal(r.why)
}
