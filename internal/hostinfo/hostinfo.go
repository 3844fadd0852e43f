// SPDX-License-Identifier: Apache-2.0

// Package hostinfo identifies the machine in the resources of receivers.
package hostinfo

import (
	"os"
	"path/filepath"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/semconv"
)

// Host is a machine. Unknown fields are "".
type Host struct {
	// Name is host.name.
	Name string
	// ID is host.id: systemd's machine id, as OpenTelemetry's resource detectors report it.
	ID string
}

// Read identifies the machine whose file system is mounted at root. A name that is not "" is kept. In a
// container the system's own name is that of the container, so another root than / has the name in a
// file.
func Read(root, name string) Host {
	h := Host{Name: name, ID: firstLine(root, "etc/machine-id")}
	if h.ID == "" {
		h.ID = firstLine(root, "var/lib/dbus/machine-id")
	}
	if h.Name == "" && filepath.Clean(root) != "/" {
		h.Name = firstLine(root, "etc/hostname")
	}
	if h.Name == "" {
		h.Name, _ = os.Hostname()
	}
	return h
}

// DriverVersion returns the version of the loaded NVIDIA driver of that machine, or "" if none is
// loaded.
func DriverVersion(root string) string { return firstLine(root, "sys/module/nvidia/version") }

// Put adds what is known to the attributes of a resource.
func (h Host) Put(resource pcommon.Map) {
	if h.Name != "" {
		resource.PutStr(semconv.HostName, h.Name)
	}
	if h.ID != "" {
		resource.PutStr(semconv.HostID, h.ID)
	}
}

func firstLine(root, name string) string {
	line, _, _ := strings.Cut(string(procfs.ReadFile(filepath.Join(root, name))), "\n")
	return strings.TrimSpace(line)
}
