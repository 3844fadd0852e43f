// SPDX-License-Identifier: Apache-2.0

// Package certificates runs the commands and uses the settings for certificates in
// docs/deploying.md. It reads them from the page, so tests show that users can copy them. It
// depends on the page's layout and needs openssl.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// folder is the page's folder of certificates; host is the machine they are for.
const (
	folder = "/etc/otelcol-gpuflight/tls"
	host   = "gateway.example"
)

// Folder holds certificates and settings of the page, for a server on loopback.
type Folder struct {
	dir  string
	page string
}

// Make runs the page's commands in a temporary folder. It skips the test if openssl is missing.
func Make(t testing.TB) Folder {
	t.Helper()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		process.Missing(t, fmt.Sprintf("certificates need openssl: %v", err))
	}
	text, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "deploying.md"))
	if err != nil {
		t.Fatal(err)
	}
	f := Folder{dir: t.TempDir(), page: string(text)}
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", f.block(t, "certificates.sh"))
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(openssl)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the commands of docs/deploying.md: %v\n%s", err, out)
	}
	return f
}

// Path returns the path of a certificate or key.
func (f Folder) Path(name string) string { return filepath.Join(f.dir, name) }

// Client returns an HTTP client that trusts only this authority.
func (f Folder) Client(t testing.TB) *http.Client {
	t.Helper()
	authority, err := os.ReadFile(f.Path("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("ca.pem has no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Settings writes a block of settings of the page to a file and returns its path. It replaces /etc
// by the temporary folder.
func (f Folder) Settings(t testing.TB, name string) string {
	t.Helper()
	path := f.Path(name)
	if err := os.WriteFile(path, []byte(f.block(t, name)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// block returns the block of the page that starts with a comment with the given name.
func (f Folder) block(t testing.TB, name string) string {
	t.Helper()
	fenced := regexp.MustCompile("(?s)```\\w+\n# " + regexp.QuoteMeta(name) + "\\b.*?```")
	found := fenced.FindAllString(f.page, -1)
	if len(found) != 1 {
		t.Fatalf("docs/deploying.md has %d blocks that begin with # %s, want 1", len(found), name)
	}
	lines := strings.Split(found[0], "\n")
	text := strings.Join(lines[1:len(lines)-1], "\n") + "\n"
	return strings.NewReplacer(folder, f.dir, host, "localhost").Replace(text)
}
