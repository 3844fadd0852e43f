// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxStackScopes bounds the scopes of a stack, innermost first.
const maxStackScopes = 64

// profiles sends a window as profiles if they are enabled. ref is the window's span.
func (e *engine) profiles(w *Window, ref gpuevent.Ref) {
	if e.cfg.Profiles == nil || w.Profile == nil {
		return
	}
	attributes := []profile.Attribute{{Key: semconv.CUDADeepWindowID, Int: int64(w.ID), IsInt: true}}
	for _, a := range []profile.Attribute{
		{Key: semconv.CUDADeepWindowCause, Str: string(w.Cause)}, {Key: semconv.CUDADeepWindowWhy, Str: w.Why},
	} {
		if a.Str != "" {
			attributes = append(attributes, a)
		}
	}
	requests := w.Profile.Profiles(&deepprofile.Session{
		Resource: e.resource, Devices: e.session.Devices, Attributes: attributes,
		ID: func(n uint64) [16]byte { return e.key.Trace(gpuevent.KindDeepWindow, w.ID, n) },
		Launch: func(correlation gpuevent.Int) (gpuevent.Ref, []string) {
			return e.windows.refOf(correlation, ref), e.windows.scopesOf(correlation)
		},
	})
	for _, p := range requests {
		e.cfg.Profiles.Profiles(p)
	}
}

// scopesOf returns the names of the scopes around a launch, innermost first, or nil if unknown.
func (w *windows) scopesOf(correlation gpuevent.Int) (names []string) {
	if !correlation.OK {
		return nil
	}
	l := w.launches[uint32(correlation.V)]
	for s := l.in; s != nil && s.kind != gpuevent.KindSession && len(names) < maxStackScopes; s = s.parent {
		names = append(names, s.name)
	}
	return names
}
