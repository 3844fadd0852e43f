// SPDX-License-Identifier: Apache-2.0

package window

import (
	"context"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Refusing returns engines of a process in which nothing can be recorded: each window that is asked for says
// why.
func Refusing(why cupti.Status) deep.Engines { return refusing{why} }

type refusing struct{ why cupti.Status }

func (refusing) Ready() bool                        { return true }
func (refusing) PausesActivity(deep.Engine) bool    { return false }
func (refusing) Pause(context.Context) error        { return nil }
func (refusing) Resume(context.Context, bool) error { return nil }

func (r refusing) Arm(context.Context, deep.Engine, deep.Options) (deep.Session, error) {
	return nil, refusal(r.why)
}
