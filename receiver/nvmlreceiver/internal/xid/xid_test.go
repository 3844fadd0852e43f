// SPDX-License-Identifier: Apache-2.0

package xid

import (
	"strings"
	"testing"
)

func TestMeanings(t *testing.T) {
	if m, ok := Meaning(79); !ok || !strings.Contains(m, "fallen off the bus") {
		t.Errorf("79: %q", m)
	}
	if m, ok := Meaning(9999); ok || m != "" {
		t.Errorf("an unknown code means %q", m)
	}
	if len(meanings) < 40 {
		t.Errorf("only %d codes", len(meanings))
	}
	for code, m := range meanings {
		if m == "" || strings.HasSuffix(m, ".") || strings.TrimSpace(m) != m {
			t.Errorf("%d: %q is not a sentence without its full stop", code, m)
		}
	}
}
