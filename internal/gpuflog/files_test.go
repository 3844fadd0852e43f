// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParseFileName(t *testing.T) {
	for path, want := range map[string]FileName{
		"a/b/run.device.log":        {Group: FileGroup{"a/b", "run"}, Channel: Device, Index: Unnumbered},
		"run.1.scope.12.log.gz":     {Group: FileGroup{"", "run.1"}, Channel: Scope, Index: 12, Compressed: true},
		"/s/device.3.log":           {Group: FileGroup{"/s", ""}, Channel: Device, Index: 3},
		"/s/.tmp/system.log":        {Group: FileGroup{"/s", ""}, Channel: System, Index: Unnumbered, Staged: true},
		"/s/.tmp/x.system.log":      {Group: FileGroup{"/s/.tmp", "x"}, Channel: System, Index: Unnumbered},
		"s/sass.0.log":              {Group: FileGroup{"s", ""}, Channel: Sass, Index: 0},
		"a/.x.device.log":           {Group: FileGroup{"a", ".x"}, Channel: Device, Index: Unnumbered},
		"a/run.kernel.0.log":        {Group: FileGroup{"a", "run"}, Channel: Device, Index: 0},
		"a/x.device.999999999.log":  {Group: FileGroup{"a", "x"}, Channel: Device, Index: MaxFileIndex},
		"a/x.device.1000000000.log": {},
		"a/device.01.log":           {},
		"a/device.+1.log":           {},
		"a/kernel.0.log":            {},
		"a/run.kernel.0.log.gz":     {},
		"a/run.device.-1.x.log":     {},
		"a/.device.log":             {},
		"a/device.log.part":         {},
		"a/7.log":                   {},
		"":                          {},
		"a/run.device.log/":         {},
		"a/run.kernel.log":          {},
		"a/run.device.1.2.log.gz":   {},
	} {
		got, ok := ParseFileName(path)
		assert.Equal(t, want != FileName{}, ok, path)
		if ok {
			want.Path = path
		}
		assert.Equal(t, want, got, path)
	}
}

func TestOrderedFiles(t *testing.T) {
	for what, c := range map[string]struct {
		files, want []string
		windowed    bool
	}{
		"windows": {
			[]string{"s/device.10.log.gz", "s/.tmp/device.log", "s/device.2.log", "s/scope.1.log", "s/.tmp/device.10.log", "s/device.2.log.gz"},
			[]string{"s/device.2.log", "s/device.10.log.gz", "s/.tmp/device.log"}, true,
		},
		"rotated":             {[]string{"r.device.1.log", "r.device.log", "r.device.2.log"}, []string{"r.device.2.log", "r.device.1.log", "r.device.log"}, false},
		"numbered throughout": {[]string{"r.device.2.log", "r.device.1.log"}, []string{"r.device.1.log", "r.device.2.log"}, false},
		"flat in a folder":    {[]string{"s/device.log", "s/device.1.log"}, []string{"s/device.1.log", "s/device.log"}, false},
		"none":                {[]string{"s/scope.log"}, nil, false},
	} {
		name := func(path string) FileName {
			n, ok := ParseFileName(path)
			assert.True(t, ok, path)
			return n
		}
		windowed := Windowed(c.files, name)
		assert.Equal(t, c.windowed, windowed, what)
		assert.Equal(t, c.want, Ordered(c.files, name, Device, windowed), what)
	}
}
