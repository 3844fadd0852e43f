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
	"time"

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
			d, err := makeDir(Place{TempDir: temp})
			if err == nil {
				d.close()
			}
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
		{0o777, runtimeDir, temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
		{0o700, "relative", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
		{0o700, runtimeDir + "/none", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
		{0o700, "", temp + fmt.Sprint("/gpuflight-", os.Geteuid())},
	} {
		if err := os.Chmod(runtimeDir, tc.mode); err != nil {
			t.Fatal(err)
		}
		d, err := makeDir(Place{RuntimeDir: tc.dir, TempDir: temp})
		if err != nil {
			t.Fatal(err)
		}
		if d.path != tc.want {
			t.Errorf("%v %s: %s, want %s", tc.mode, tc.dir, d.path, tc.want)
		}
		d.close()
	}
	if p := PlaceFromEnv(func(name string) string { return name }); p.RuntimeDir != "XDG_RUNTIME_DIR" || p.temp() != "/tmp" {
		t.Errorf("%+v", p)
	}
}

// TestLongPaths has a folder whose path is longer than the address of a socket may be.
func TestLongPaths(t *testing.T) {
	temp := filepath.Join(t.TempDir(), strings.Repeat("long/", 60))
	if err := os.MkdirAll(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := deep.New(deep.Config{}, engines{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(Place{TempDir: temp}, Process{}, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client := patient(Place{TempDir: temp})
	if _, _, err := client.Status(limited(t), os.Getpid()); err != nil {
		t.Error(err)
	}
	if again, err := Listen(Place{TempDir: temp}, Process{}, c, nil); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("listens twice: %v, %v", again, err)
	}
	if _, _, err := client.Status(limited(t), os.Getpid()); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(s.dir.path)
	if err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v", entries, err)
	}
	info, err := os.Stat(s.Path())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
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
	if list := client.List(limited(t)); len(list) != 1 || list[0].PID != pid || list[0].Err != nil {
		t.Errorf("list %+v", list)
	}
	// What it left to its child is not the child's.
	if _, _, err := client.Status(limited(t), holder); !errors.Is(err, ErrNotListening) {
		t.Errorf("the child: %v", err)
	}
	// Nor is what another process puts in the child's place.
	f, err := openDir(filepath.Join(place.TempDir, fmt.Sprint("gpuflight-", os.Geteuid())), os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	impostor, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.at(socketName(holder)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Status(limited(t), holder); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d listens in place of process %d", os.Getpid(), holder)) {
		t.Errorf("in place of the child: %v", err)
	}
	_ = impostor.Close()
	f.close()
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed

	d, err := openDir(filepath.Join(place.TempDir, fmt.Sprint("gpuflight-", os.Geteuid())), os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if !slices.Equal(d.pids(), []int{pid}) {
		t.Fatalf("sockets of %v", d.pids())
	}
	if owner, err := listener(d.at(socketName(pid))); err != nil || owner != pid {
		t.Errorf("%d listens, %v: the test does not show what it should", owner, err)
	}
	if _, _, err := client.Status(limited(t), pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after it was killed: %v", err)
	}
	if list := client.List(limited(t)); len(list) != 0 {
		t.Errorf("list %+v", list)
	}
	leave := func(name string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.at(name), Net: "unix"})
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
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.at(socketName(other)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	leave("7" + unfinished)
	leave("8" + unfinished)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(d.at("8"+unfinished), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.at("notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.clean()
	names := d.names()
	slices.Sort(names)
	want := []string{socketName(1), socketName(other), "7.new", "notes.txt"}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("left are %q, want %q", names, want)
	}
	if list := client.List(limited(t)); len(list) != 0 {
		t.Errorf("list %+v", list)
	}
}
