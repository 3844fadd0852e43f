// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

func TestFoldersThatAreNotUsed(t *testing.T) {
	uid := os.Geteuid()
	for _, tc := range []struct {
		name, problem string
		make          func(t *testing.T, path string) error
		root          bool
	}{
		{"a symbolic link", "is no folder; remove it", func(t *testing.T, path string) error { return os.Symlink(t.TempDir(), path) }, false},
		{"a file", "is no folder; remove it", func(_ *testing.T, path string) error { return os.WriteFile(path, nil, 0o600) }, false},
		{"one that others can read", "with mode 0755; it must belong to user", func(_ *testing.T, path string) error { return os.Mkdir(path, 0o755) }, false},
		{"one of another user", "belongs to user 12345 with mode 0700", func(_ *testing.T, path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 12345, -1))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.root && uid != 0 {
				t.Skip("only root can give folders away")
			}
			temp := t.TempDir()
			if err := tc.make(t, filepath.Join(temp, fmt.Sprint("gpuflight-", uid))); err != nil {
				t.Fatal(err)
			}
			_, err := Place{TempDir: temp}.Folder()
			if err == nil || !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("error %v", err)
			}
			if s, err := Listen(Place{TempDir: temp}, Process{}, nil, nil); s != nil || err == nil {
				t.Errorf("listens, %v", err)
			}
		})
	}
}

func TestRuntimeDir(t *testing.T) {
	temp, runtimeDir := t.TempDir(), t.TempDir()
	for _, tc := range []struct {
		mode os.FileMode
		dir  string
		want string
	}{
		{0o700, runtimeDir, runtimeDir + "/gpuflight"},
		{0o755, runtimeDir, runtimeDir + "/gpuflight"},
		{0o700, "relative", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
		{0o700, runtimeDir + "/none", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
		{0o700, "", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
	} {
		if err := os.Chmod(runtimeDir, tc.mode); err != nil {
			t.Fatal(err)
		}
		path, err := Place{RuntimeDir: tc.dir, TempDir: temp}.Folder()
		if err != nil {
			t.Fatal(err)
		}
		if path != tc.want {
			t.Errorf("%v %s: %s, want %s", tc.mode, tc.dir, path, tc.want)
		}
	}
	if p := PlaceFromEnv(func(name string) string { return name }); p.RuntimeDir != "XDG_RUNTIME_DIR" || p.temp() != "/tmp" {
		t.Errorf("%+v", p)
	}
}

func TestSecondServer(t *testing.T) {
	h := newHarness(t, deep.Config{})
	if again, err := Listen(h.place, Process{}, h.controller, nil); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("listens twice: %v, %v", again, err)
	}
	if _, _, err := h.client.Status(limited(t), os.Getpid()); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(filepath.Dir(h.server.Path()))
	if err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v", entries, err)
	}
}

// ended returns the id of a process that was.
func ended(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// listenInChild is what the test program does as a process that listens, leaves its socket to a
// child and is killed.
func listenInChild(place string) {
	c, err := deep.New(deep.Config{}, engines{})
	if err != nil {
		panic(err)
	}
	c.Start()
	s, err := Listen(Place{TempDir: place}, Process{}, c, nil)
	if err != nil {
		panic(err)
	}
	file, err := s.listener.File()
	if err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "600")
	child.ExtraFiles = []*os.File{file}
	child.SysProcAttr = &syscall.SysProcAttr{}
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(child.Process.Pid)
	_ = child.Wait()
	os.Exit(1)
}

// TestStaleSockets finds what a killed process left: with nobody who listens, and with a child that
// still holds the socket but does not answer.
func TestStaleSockets(t *testing.T) {
	place := Place{TempDir: t.TempDir()}
	client := patient(place)
	parent := exec.Command(os.Args[0], "-test.run=^$")
	parent.Env = append(os.Environ(), "GPUFLIGHT_TEST_LISTEN="+place.TempDir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var holder int
	if _, err := fmt.Fscan(out, &holder); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(holder, syscall.SIGKILL) }()
	pid := parent.Process.Pid
	if p, _, err := client.Status(limited(t), pid); err != nil || p.PID != pid {
		t.Errorf("while it lives: %+v, %v", p, err)
	}
	if l, found := listed(t, &client, pid); !found || l.Err != nil {
		t.Errorf("listed %+v, %t", l, found)
	}
	// What it left to its child is not the child's.
	if _, _, err := client.Status(limited(t), holder); !errors.Is(err, ErrNotListening) {
		t.Errorf("the child: %v", err)
	}
	// Nor is what another process puts in the child's place.
	folder, err := place.Folder()
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	impostor, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(socketName(holder)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Status(limited(t), holder); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d listens in place of process %d", os.Getpid(), holder)) {
		t.Errorf("in place of the child: %v", err)
	}
	_ = impostor.Close()
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed

	if _, _, err := client.Status(limited(t), pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after it was killed: %v", err)
	}
	if l, found := listed(t, &client, pid); found {
		t.Errorf("listed %+v", l)
	}
	leave := func(name string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dead := ended(t)
	leave(socketName(dead))        // nobody listens
	leave(socketName(os.Getpid())) // a process that had our id before
	leave(socketName(1))           // a process that lives, whoever it is
	// A process of another namespace listens under the id of one that is dead here: from here it
	// has the id of this test.
	other := ended(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(socketName(other)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(at("notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removeStale(folder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	want := []string{socketName(1), socketName(other), socketName(pid), "notes.txt"} // a child holds that of pid
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("left are %q, want %q", names, want)
	}
}
