// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// system is a locator over a list of files.
func system(driver int, maps []string, env map[string]string, files ...string) locator {
	var text strings.Builder
	for _, m := range maps {
		text.WriteString("7f0000000000-7f0000001000 r-xp 00000000 08:01 1234   " + m + "\n")
	}
	return locator{
		maps:   text.String(),
		getenv: func(key string) string { return env[key] },
		glob: func(pattern string) []string {
			var found []string
			for _, f := range files {
				if ok, _ := path.Match(pattern, f); ok {
					found = append(found, f)
				}
			}
			return found
		},
		arch:   "amd64",
		driver: driver,
	}
}

func paths(places []place) []string {
	var p []string
	for _, place := range places {
		p = append(p, place.path)
	}
	return p
}

func TestLibraryThatIsMappedComesFirst(t *testing.T) {
	const wheel = "/venv/lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12"
	got := system(13000, []string{"[heap]", wheel, wheel, "/usr/lib/libcuda.so.1"}, nil, "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13").places()
	if got[0] != (place{wheel, true, 12}) {
		t.Errorf("first is %+v", got[0])
	}
	if n := len(got); !slices.Contains(paths(got), "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13") || slices.Contains(paths(got[1:]), wheel) {
		t.Errorf("%d places: %v", n, paths(got))
	}
}

func TestLibraryBesideTheRuntime(t *testing.T) {
	for _, c := range []struct{ name, runtime, library string }{
		{"wheels of CUDA 13", "/p/nvidia/cu13/lib/libcudart.so.13", "/p/nvidia/cu13/lib/libcupti.so.13"},
		{"wheels of CUDA 12", "/p/nvidia/cuda_runtime/lib/libcudart.so.12", "/p/nvidia/cuda_cupti/lib/libcupti.so.12"},
		{"wheels of CUDA 11", "/p/nvidia/cuda_runtime/lib/libcudart.so.11.0", "/p/nvidia/cuda_cupti/lib/libcupti.so.11.8"},
		{"a toolkit", "/opt/cuda/lib64/libcudart.so.12.4.127", "/opt/cuda/extras/CUPTI/lib64/libcupti.so.12"},
	} {
		if got := system(13000, []string{c.runtime}, nil, c.library, "/usr/local/cuda/lib64/libcupti.so.13").places(); got[0].path != c.library || got[0].mapped {
			t.Errorf("%s: first is %+v", c.name, got[0])
		}
	}
}

func TestLibraryOfTheLoaderAndTheToolkits(t *testing.T) {
	got := paths(system(12040, nil, map[string]string{"CUDA_HOME": "/opt/cuda"},
		"/usr/local/cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8", "/usr/local/cuda-12.4/extras/CUPTI/lib64/libcupti.so.12",
		"/opt/cuda/targets/x86_64-linux/lib/libcupti.so.13", "/opt/cuda/targets/x86_64-linux/lib/libcupti.so.12", "/usr/local/cuda-12.4", "/usr/local/cuda-11.8").places())
	want := []string{
		"libcupti.so.12", "libcupti.so.13", "libcupti.so.11.8",
		"/opt/cuda/targets/x86_64-linux/lib/libcupti.so.12", "/opt/cuda/targets/x86_64-linux/lib/libcupti.so.13",
		"/usr/local/cuda-12.4/extras/CUPTI/lib64/libcupti.so.12", "/usr/local/cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8",
	}
	if !slices.Equal(got, want) {
		t.Errorf("places\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRuntimeDecidesTheVersion(t *testing.T) {
	got := system(13000, []string{"/x/libcudart.so.12"}, nil).places()
	if got[0].path != "libcupti.so.12" || got[1].path != "libcupti.so.13" {
		t.Errorf("places %v", paths(got))
	}
}

func TestLibraryMajor(t *testing.T) {
	for name, want := range map[string]int{
		"libcupti.so.13": 13, "/a/libcupti.so.12": 12, "libcupti.so.11.8": 11, "libcudart.so.12.4.127": 12,
		"libcupti.so.2025.3.1": 0, "libcupti.so": 0, "libcupti_static.so.13": 0, "notlibcupti.so.13": 0,
	} {
		if got := libraryMajor(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestVersionsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		version, driver int
		fits            bool
	}{
		{17, 11080, false}, {18, 11080, true}, {18, 12000, true}, {18, 13000, true}, {28, 12040, true}, {28, 13000, true},
		{28, 11080, false}, {130001, 13000, true}, {130500, 13000, true}, {130001, 12090, false}, {130001, 0, true}, {140000, 13020, false},
	} {
		got := incompatibility("/lib/libcupti.so", c.version, c.driver)
		if (got == "") != c.fits {
			t.Errorf("version %d with driver %d: %q", c.version, c.driver, got)
		}
	}
	const want = "/l is of CUDA 13, but the driver supports CUDA 12.4 only: update the driver, or install libcupti of CUDA 12 (for example the Python package nvidia-cuda-cupti-cu12)"
	if got := incompatibility("/l", 130001, 12040); got != want {
		t.Errorf("says %q", got)
	}
}
