// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// place is where libcupti may be.
type place struct {
	path string
	// mapped: the process has it already. Two CUPTIs in a process do not work, so it comes first.
	mapped bool
	// major is the CUDA version that the name tells, 0 if none.
	major int
}

// locator finds libcupti. Its fields are the system, so that tests can be another one.
type locator struct {
	maps   string // text of /proc/self/maps
	getenv func(string) string
	glob   func(string) []string
	arch   string // of Go
	driver int    // CUDA version that the driver supports (13000), 0 if unknown
}

var soname = regexp.MustCompile(`^lib(cupti|cudart)\.so(?:\.(\d+)(?:[.\d]*))?$`)

// libraryMajor returns the CUDA version in a name like libcupti.so.12, 0 if there is none. The
// files of CUDA 12 and earlier toolkits are also called libcupti.so.2024.1.0, by year.
func libraryMajor(path string) int {
	m := soname.FindStringSubmatch(filepath.Base(path))
	if m == nil || m[2] == "" {
		return 0
	}
	major, err := strconv.Atoi(m[2])
	if err != nil || major > 2000 {
		return 0
	}
	return major
}

// mappedLibraries returns the files with a name of that library that the process has mapped.
func (l locator) mappedLibraries(name string) []string {
	var found []string
	for line := range strings.Lines(l.maps) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := strings.TrimSuffix(line[at:], "\n")
		m := soname.FindStringSubmatch(filepath.Base(path))
		if m != nil && m[1] == name && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found
}

// places returns the paths to try, best first.
func (l locator) places() []place {
	var found []place
	seen := map[string]bool{}
	add := func(path string, mapped bool) {
		if !seen[path] {
			seen[path] = true
			found = append(found, place{path, mapped, libraryMajor(path)})
		}
	}
	for _, path := range l.mappedLibraries("cupti") {
		add(path, true)
	}

	// The CUDA version of the process is that of the runtime in it; else the driver's will do.
	majors := []int{13, 12, 11}
	prefer := func(major int) {
		if i := slices.Index(majors, major); i > 0 {
			majors = slices.Insert(slices.Delete(majors, i, i+1), 0, major)
		}
	}
	prefer(l.driver / 1000)
	runtimes := l.mappedLibraries("cudart")
	for _, path := range runtimes {
		prefer(libraryMajor(path))
	}
	files := func(dir string) {
		for _, major := range majors {
			for _, path := range l.glob(filepath.Join(dir, "libcupti.so."+strconv.Itoa(major)+"*")) {
				add(path, false)
			}
		}
	}
	for _, path := range runtimes {
		dir := filepath.Dir(path)
		files(dir) // the wheels of CUDA 13: nvidia/cu13/lib
		if filepath.Base(filepath.Dir(dir)) == "cuda_runtime" {
			// The wheels of CUDA 11 and 12: nvidia/cuda_runtime/lib and nvidia/cuda_cupti/lib.
			files(filepath.Join(dir, "..", "..", "cuda_cupti", "lib"))
		}
		// A toolkit: targets/x86_64-linux/lib, and lib64 that points to it.
		files(filepath.Join(dir, "..", "extras", "CUPTI", "lib64"))
	}
	for _, major := range majors {
		name := "libcupti.so." + strconv.Itoa(major)
		if major == 11 {
			name = "libcupti.so.11.8"
		}
		add(name, false) // the loader's own search
	}
	target := "x86_64-linux"
	if l.arch == "arm64" {
		target = "sbsa-linux"
	}
	var homes []string
	for _, key := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := l.getenv(key); home != "" {
			homes = append(homes, home)
		}
	}
	homes = append(homes, "/usr/local/cuda")
	versions := l.glob("/usr/local/cuda-*")
	slices.Sort(versions)
	slices.Reverse(versions)
	homes = append(homes, versions...)
	for _, home := range homes {
		files(filepath.Join(home, "extras", "CUPTI", "lib64"))
		files(filepath.Join(home, "targets", target, "lib"))
		files(filepath.Join(home, "lib64"))
	}
	return found
}

// minVersion is the API version of CUDA 11.8, the first whose records are known.
const minVersion = 18

// versionMajor returns the CUDA version that a CUPTI is of, by its API version (cupti_version.h):
// counted up to 28 (12.9), from then on like 130001. 18 is both 11.8 and 12.0.
func versionMajor(version int) int {
	switch {
	case version >= 100000:
		return version / 10000
	case version > 18:
		return 12
	default:
		return 11
	}
}

// incompatibility returns in a sentence why a CUPTI of this version cannot work with the driver, or
// "" if it can.
func incompatibility(path string, version, driver int) string {
	if version < minVersion {
		return fmt.Sprintf("%s is older than CUDA 11.8 (its API version is %d): install a newer libcupti, for example the Python package nvidia-cuda-cupti-cu12", path, version)
	}
	if major := versionMajor(version); driver > 0 && major > driver/1000 {
		return newerThanDriver(path, major, driver)
	}
	return ""
}

func newerThanDriver(path string, major, driver int) string {
	advice := "nvidia-cuda-cupti-cu" + strconv.Itoa(driver/1000)
	return fmt.Sprintf("%s is of CUDA %d, but the driver supports CUDA %d.%d only: update the driver, or install libcupti of CUDA %d (for example the Python package %s)",
		path, major, driver/1000, driver%1000/10, driver/1000, advice)
}
