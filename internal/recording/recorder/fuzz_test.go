// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// FuzzSettings checks that a recorder accepts the settings of any environment, and that errors and
// memory are bounded.
func FuzzSettings(f *testing.F) {
	for _, text := range []string{
		"", "true", "-1", "20000", "1500us", "+sync,-nvtx", "kernel", "a*,?b", "warn",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "service.name=a%20b,k=v", "k=%zz",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// Forty variables have the text, and an error quotes it.
		alloctest.Limit{PerByte: 1 << 12, Constant: 1 << 18}.Check(t, len(text), func() {
			_, _ = SettingsFromEnv(func(string) string { return text })
		})
		settings, err := SettingsFromEnv(func(string) string { return text })
		if err != nil && strings.Count(err.Error(), "\n") > 40 {
			t.Fatalf("%d lines of errors", strings.Count(err.Error(), "\n"))
		}
		if settings.HasParent && (settings.Parent.Trace == gpuevent.TraceID{} || settings.Parent.Span == gpuevent.SpanID{}) {
			t.Fatal("a parent without ids")
		}
		if settings.InstanceID != "" && !IsUUID(settings.InstanceID) {
			t.Fatalf("instance id %q", settings.InstanceID)
		}
		if _, err := complete(settings.Config()); err != nil {
			t.Fatalf("settings that a recorder does not take: %v", err)
		}
	})
}
