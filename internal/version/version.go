// SPDX-License-Identifier: Apache-2.0

// Package version holds the version of this build. Every program and library of the repository
// reports it: gpuflight, libgpuflight-recorder.so and sdk/gpufl. The Collector gets the same version
// from ocb (dist.version in builder-config.yaml); the release workflow compares the two.
package version

import (
	"runtime/debug"
	"strings"
	"sync"
)

// module is the path of the root module. The paths of the other modules start with it.
const module = "github.com/gpuflight/gpuflight"

// Development is the version of a build that no release made.
const Development = "dev"

// linked is the version that the linker sets, without a leading "v":
//
//	go build -ldflags "-X github.com/gpuflight/gpuflight/internal/version.linked=0.2.0" …
var linked string

var current = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return resolve(linked, info)
})

// String returns the version without a leading "v", for example "0.2.0". It comes from the first of
// these sources that has one:
//
//   - the linker;
//   - the version of our module in the program: "go install …@v0.2.0", or an import of sdk/gpufl;
//   - the commit: "dev+1a2b3c4d5e6f", with "-dirty" for uncommitted changes.
//
// Without a source it returns "dev". String is safe for concurrent use.
func String() string { return current() }

func resolve(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return Development
	}
	if ours(info.Main.Path) {
		if v, ok := released(info.Main.Version); ok {
			return v
		}
		return Development + commit(info.Settings)
	}
	for _, dep := range info.Deps {
		if dep.Path != module {
			continue
		}
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if v, ok := released(dep.Version); ok {
			return v
		}
	}
	return Development
}

func ours(path string) bool {
	return path == module || strings.HasPrefix(path, module+"/")
}

// released returns a module version without its "v". It reports false for a build from a checkout:
// such a version is empty, "(devel)" or, with a version control stamp, a pseudo-version that ends in
// "+dirty" after a change. A pseudo-version without that suffix identifies its commit and is kept.
func released(v string) (string, bool) {
	number, ok := strings.CutPrefix(v, "v")
	return number, ok && number != "" && !strings.HasSuffix(number, "+dirty")
}

// commit returns "+" and the first 12 digits of the commit, or "" if the build has no stamp.
func commit(settings []debug.BuildSetting) string {
	var revision, dirty string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return "+" + revision[:min(len(revision), 12)] + dirty
}
