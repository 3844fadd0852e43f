// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// distroName is the name of the recorder in telemetry.
const distroName = "gpuflight"

// NewInstanceID returns a random UUID (version 4).
func NewInstanceID() string { return uuid.NewString() }

// IsUUID reports whether s is a UUID with hyphens, other than the one of zeros only.
func IsUUID(s string) bool {
	id, err := uuid.Parse(s)
	return err == nil && len(s) == 36 && id != uuid.Nil
}

// DetectProcess fills in PID, HostName, Command and the attributes that name the executable, the
// language and the place in a distributed run. language is "" if it is unknown. DetectProcess
// changes no field or attribute that is already set.
func DetectProcess(c *Config, language string) {
	if c.PID == 0 {
		c.PID = os.Getpid()
	}
	if c.HostName == "" && !hasAttr(c.Resource, semconv.HostName) {
		c.HostName, _ = os.Hostname() // unknown is absent
	}
	if c.Command == nil {
		c.Command = commandLine()
	}
	add := func(a gpuevent.Attr) {
		if !hasAttr(c.Resource, a.Key) {
			c.Resource = append(c.Resource, a)
		}
	}
	if exe := executable(c.Command); exe != "" {
		add(gpuevent.Str(semconv.ProcessExecutableName, exe))
	}
	if language != "" {
		add(gpuevent.Str(semconv.TelemetrySDKLanguage, language))
	}
	host, _ := os.Hostname()
	for _, a := range runAttributes(os.Getenv, host) {
		add(a)
	}
}

func hasAttr(attributes []gpuevent.Attr, key string) bool {
	for i := range attributes {
		if attributes[i].Key == key {
			return true
		}
	}
	return false
}

// commandLine returns the command line of this process. os.Args is wrong in a library that another
// program has loaded.
func commandLine() []string {
	if b, err := os.ReadFile("/proc/self/cmdline"); err == nil && len(b) > 0 {
		return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	}
	return append([]string(nil), os.Args...)
}

// executable returns the file name of the running program.
func executable(command []string) string {
	if path, err := os.Readlink("/proc/self/exe"); err == nil {
		return strings.TrimSuffix(filepath.Base(path), " (deleted)")
	}
	if len(command) > 0 && command[0] != "" {
		return filepath.Base(command[0])
	}
	return ""
}

// defaultService returns service.name for a configuration without one.
func defaultService(attributes []gpuevent.Attr) string {
	for i := range attributes {
		if attributes[i].Key == semconv.ProcessExecutableName && attributes[i].Str != "" {
			return semconv.UnknownService + ":" + attributes[i].Str
		}
	}
	return semconv.UnknownService
}

// Write writes the summary into a folder as PID-INSTANCE.json. A reader of the folder sees the
// whole file or none.
func (s *Summary) Write(dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	path := filepath.Join(dir, strconv.Itoa(s.PID)+"-"+s.Instance+".json")
	part := path + ".part"
	if err := os.WriteFile(part, b, 0o600); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		_ = os.Remove(part) // best effort: the error of the rename is returned
		return fmt.Errorf("summary: %w", err)
	}
	return nil
}
