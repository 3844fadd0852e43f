// SPDX-License-Identifier: Apache-2.0

package checks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuflight/gpuflight/internal/bytesize"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// Collector checks whether the Collector's program was found at path. err is the error of the search.
func Collector(path string, err error) Finding {
	f := Finding{Check: "otelcol", Optional: true, OK: err == nil, Detail: path}
	if err != nil {
		f.Detail = oneLine(err)
	}
	return f
}

// minFree is the free space that the store of config/local.yaml keeps.
const minFree = 2 << 30

// Disk checks the space for the store of config/local.yaml, which is in a folder.
func Disk(folder string) Finding {
	f := Finding{Check: "disk", Optional: true}
	folder, err := filepath.Abs(folder)
	if err != nil {
		f.Detail = oneLine(err)
		return f
	}
	existing := folder // the store creates the rest
	for {
		info, err := os.Stat(existing)
		if err == nil && !info.IsDir() {
			f.Detail, f.Fix = existing+" is not a folder, so the store cannot be in "+folder, "set GPUFLIGHT_STATE"
			return f
		}
		if err == nil || existing == filepath.Dir(existing) || !errors.Is(err, fs.ErrNotExist) {
			break
		}
		existing = filepath.Dir(existing)
	}
	free, writable, err := freeSpace(existing)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		f.OK, f.Detail = true, "the free space is unknown on this system"
	case err != nil:
		f.Detail, f.Fix = "read the free space of "+existing+": "+oneLine(err), "set GPUFLIGHT_STATE to another folder"
	case !writable:
		f.Detail, f.Fix = "this user cannot write to "+existing+", where the store would be", "set GPUFLIGHT_STATE to another folder"
	case free < minFree:
		f.Detail = fmt.Sprintf("%s are free for the store in %s, which deletes old sessions below %s", bytesize.Format(free), folder, bytesize.Format(minFree))
		f.Fix = "free some space, or set GPUFLIGHT_STATE to another folder"
	default:
		f.OK, f.Detail = true, fmt.Sprintf("%s free for the store in %s", bytesize.Format(free), folder)
	}
	return f
}

// port is an address on which config/local.yaml listens.
type port struct{ purpose, variable, address string }

func ports(getenv func(string) string) []port {
	number := func(variable, standard string) string { return "127.0.0.1:" + cmp.Or(getenv(variable), standard) }
	return []port{
		{"OTLP over gRPC", "GPUFLIGHT_LISTEN", cmp.Or(getenv("GPUFLIGHT_LISTEN"), "127.0.0.1:4317")},
		{"OTLP over HTTP", "GPUFLIGHT_LISTEN_HTTP", cmp.Or(getenv("GPUFLIGHT_LISTEN_HTTP"), "127.0.0.1:4318")},
		{"the UI", "GPUFLIGHT_UI", cmp.Or(getenv("GPUFLIGHT_UI"), "127.0.0.1:8686")},
		{"metrics of devices", "GPUFLIGHT_PROMETHEUS_PORT", number("GPUFLIGHT_PROMETHEUS_PORT", "9464")},
		{"the Collector's own metrics", "GPUFLIGHT_METRICS_PORT", number("GPUFLIGHT_METRICS_PORT", "8888")},
	}
}

// Ports checks whether the ports of config/local.yaml are free, or belong to a Collector.
func (s System) Ports(getenv func(string) string) Finding {
	f := Finding{Check: "ports", Optional: true}
	var taken, free, collector []string
	for _, p := range ports(getenv) {
		l, err := net.Listen("tcp", p.address)
		if err == nil {
			_ = l.Close()
			free = append(free, p.address)
			continue
		}
		switch owner := s.owner(p.address); {
		case strings.HasPrefix(owner, "otelcol"):
			collector = append(collector, p.address)
		case owner != "":
			taken = append(taken, fmt.Sprintf("%s (%s) is taken by %s", p.address, p.purpose, owner))
		default:
			taken = append(taken, fmt.Sprintf("%s (%s): %v", p.address, p.purpose, reason(err)))
		}
		if len(taken) == 1 && f.Fix == "" {
			f.Fix = "set " + p.variable + " for the Collector, or end the other program"
		}
	}
	switch {
	case len(taken) > 0:
		f.Detail = strings.Join(taken, "; ")
	case len(collector) > 0:
		f.OK, f.Detail = true, "a Collector listens on "+strings.Join(collector, ", ")
	default:
		f.OK, f.Detail = true, "free: "+strings.Join(free, ", ")
	}
	return f
}

// reason returns the last part of a network error.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Output checks whether a recording can be written to a file, which exists.
func Output(sending *otlp.Settings) Finding {
	f := Finding{Check: "output", OK: true, Detail: sending.File}
	folder := filepath.Dir(sending.File)
	if free, _, err := freeSpace(folder); err == nil && free < minOutput {
		f.OK = false
		f.Detail = fmt.Sprintf("only %s are free in %s, and a million kernels need about 1.2 GB", bytesize.Format(free), folder)
		f.Fix = "choose another folder in --output, or compress with a name that ends in .zst"
	}
	return f
}

// minOutput is the space for about 80,000 kernels.
const minOutput = 100 << 20
