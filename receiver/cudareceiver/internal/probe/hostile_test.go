// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// inventedProcess adds a process to a fake /proc. It has mapped paths below its root.
func inventedProcess(t *testing.T, proc string, pid int, uid uint32, inode uint64, paths ...string) string {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "root", "lib"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), fmt.Appendf(nil, "Uid:\t%d\t0\t0\t0\n", uid), 0o600))
	maps := ""
	for i, path := range paths {
		maps += fmt.Sprintf("7f%010x-7f%010x r-xp 00000000 08:01 %d                         %s\n", i<<12, (i+1)<<12, inode, path)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o600))
	return dir
}

// The file at the path is not opened: a FIFO would block, a device may have effects.
func TestOpen_NoRegularFile(t *testing.T) {
	proc := t.TempDir()
	dir := inventedProcess(t, proc, 7, 1000, 1)
	lib := filepath.Join(dir, "root", "lib")
	path := filepath.Join(lib, "libcuda.so.1")
	outside := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(outside, []byte("another user's"), 0o600))
	for name, place := range map[string]func() error{
		"fifo":             func() error { return unix.Mkfifo(path, 0o600) },
		"socket":           func() error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"folder":           func() error { return os.Mkdir(path, 0o755) },
		"link":             func() error { return os.Symlink(outside, path) },
		"link to a device": func() error { return os.Symlink("/dev/null", path) },
		"link in the path": func() error {
			other := filepath.Join(dir, "root", "other")
			return errors.Join(os.Remove(lib), os.MkdirAll(other, 0o755), os.Symlink("other", lib),
				os.WriteFile(filepath.Join(other, "libcuda.so.1"), []byte("x"), 0o600))
		},
		"another file": func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a large file": func() error {
			f, err := os.Create(path)
			if err == nil {
				err = f.Truncate(maxFileBytes + 1)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, place())
			defer func() {
				require.NoError(t, os.RemoveAll(lib))
				require.NoError(t, os.Mkdir(lib, 0o755))
			}()
			// Only the kind of the file is wrong, unless it is another file.
			var s unix.Stat_t
			require.NoError(t, unix.Lstat(path, &s))
			if name == "another file" {
				s.Ino++
			}
			inventedProcess(t, proc, 7, 1000, s.Ino, "/lib/libcuda.so.1")
			f := finder{proc: proc, shares: newShares(nil)}
			l := newLook()
			done := time.AfterFunc(time.Minute, func() { panic("the FIFO is waited for") })
			f.process(t.Context(), l, "7")
			done.Stop()
			assert.Empty(t, l.found)
			var n uint64
			for reason, count := range f.shares.counts() {
				assert.Contains(t, []string{SkipChanged, SkipMalformed}, reason)
				n += count
			}
			assert.EqualValues(t, 1, n)
			assert.Zero(t, f.dog.Pending())
		})
	}
}

// A read that never returns is abandoned. Processes of other users are scanned.
func TestDiscover_ReadsThatHang(t *testing.T) {
	proc := filepath.Join(t.TempDir(), "proc")
	var fifos []string
	for pid := 1; pid <= 6; pid++ {
		dir := inventedProcess(t, proc, pid, 1000, 1)
		fifo := filepath.Join(dir, "maps")
		require.NoError(t, os.Remove(fifo))
		require.NoError(t, unix.Mkfifo(fifo, 0o600))
		fifos = append(fifos, fifo)
	}
	dir := inventedProcess(t, proc, 7, 1001, 1)
	path := filepath.Join(dir, "root", "lib", "libcuda.so.1")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	inventedProcess(t, proc, 7, 1001, fileAt(t, path).inode, "/lib/libcuda.so.1")

	var logged []Skip // one goroutine looks
	f := finder{proc: proc, shares: newShares(func(s Skip) { logged = append(logged, s) })}
	began := time.Now()
	l, err := f.all(t.Context())
	require.NoError(t, err)
	assert.Less(t, time.Since(began), 10*scanLimit, "two reads are waited for, not six")
	require.Len(t, l.found, 1)
	assert.Equal(t, tenant{uid: 1001}, l.found[0].tenant)
	// The first read that hangs uses up the user's time; the others are not tried.
	counts := f.shares.counts()
	assert.EqualValues(t, 6, counts[SkipUnresponsive]+counts[SkipUserShare])
	assert.Positive(t, counts[SkipUnresponsive])
	assert.Equal(t, map[tenant]bool{{uid: 1000}: true}, l.partial)
	assert.False(t, l.incomplete)
	require.Len(t, logged, len(counts), "once for each reason")
	assert.EqualValues(t, 1000, logged[0].UID)
	assert.GreaterOrEqual(t, f.dog.Pending(), 1)
	for _, fifo := range fifos {
		if w, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			require.NoError(t, w.Close())
		}
	}
	require.Eventually(t, func() bool { return f.dog.Pending() == 0 }, waitLimit, time.Millisecond)
}

// One user's files use only that user's share.
func TestDiscover_Shares(t *testing.T) {
	proc := filepath.Join(t.TempDir(), "proc")
	fill := func(pid int, uid uint32, files int) {
		dir := inventedProcess(t, proc, pid, uid, 1)
		maps := ""
		for i := range files {
			name := fmt.Sprintf("/lib/libcuda.so.%d", i)
			path := filepath.Join(dir, "root", name)
			require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
			maps += fmt.Sprintf("7f%010x-7f%010x r-xp 00000000 08:01 %d      %s\n", i<<12, (i+1)<<12, fileAt(t, path).inode, name)
			maps += fmt.Sprintf("7f%010x-7f%010x r--p 00001000 08:01 %d      %s\n", i<<12, (i+1)<<12, fileAt(t, path).inode, name)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o600))
	}
	fill(1, 1000, userFiles+100)
	fill(2, 1001, 3)
	f := finder{proc: proc, shares: newShares(nil)}
	l, err := f.all(t.Context())
	require.NoError(t, err)
	found := map[tenant]int{}
	for _, c := range l.found {
		found[c.tenant]++
	}
	assert.Equal(t, map[tenant]int{{uid: 1000}: userFiles, {uid: 1001}: 3}, found)
	assert.Equal(t, map[string]uint64{SkipUserShare: 100}, f.shares.counts())

	// The user is over its share: its processes are not read again in this window.
	l, err = f.all(t.Context())
	require.NoError(t, err)
	assert.Len(t, l.found, 3)
	assert.EqualValues(t, 101, f.shares.counts()[SkipUserShare])
	f.shares.began = f.shares.began.Add(-shareWindow)
	l, err = f.all(t.Context())
	require.NoError(t, err)
	assert.Len(t, l.found, userFiles+3)
}

func TestShares_Total(t *testing.T) {
	s := newShares(nil)
	for n := range totalFiles / userFiles {
		got, reason := s.files(tenant{uid: uint32(n)}, userFiles)
		assert.Equal(t, userFiles, got)
		assert.Empty(t, reason)
	}
	got, reason := s.files(tenant{uid: 9999}, 1)
	assert.Zero(t, got)
	assert.Equal(t, SkipTotalShare, reason)

	for name, spend := range map[string]func(*shares){
		"time":  func(s *shares) { s.spend(tenant{uid: 1}, userTime, 0) },
		"bytes": func(s *shares) { s.spend(tenant{uid: 1}, 0, userBytes) },
	} {
		s := newShares(nil)
		who := func() tenant { return tenant{uid: 1} }
		_, _, over := s.exhausted(who)
		assert.False(t, over, name)
		spend(s)
		_, reason, over = s.exhausted(who)
		assert.True(t, over, name)
		assert.Equal(t, SkipUserShare, reason)
		_, _, over = s.exhausted(func() tenant { return tenant{uid: 2} })
		assert.False(t, over, "another user, %s", name)
	}
}

// A file that is not a library is read once, counted once, and not kept open.
func TestAdmit_RejectedFilesAreRemembered(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	path := filepath.Join(filepath.Dir(l.Library), "libcuda.so.2")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	p.looking.Lock()
	defer p.looking.Unlock()
	o, err := openPath(path)
	require.NoError(t, err)
	o.close()
	c := candidate{library: libcuda, path: path, tenant: tenant{uid: 1000}}
	c.is(o)
	before := descriptors(t)
	for range 3 {
		require.NoError(t, p.admit(t.Context(), &c))
	}
	assert.Equal(t, before, descriptors(t))
	s := snapshot(t, p)
	assert.EqualValues(t, 1, s.Losses.Skipped[SkipMalformed])
	assert.EqualValues(t, 1, s.Losses.AttachFailed)
	assert.Empty(t, p.Libraries())

	// It is read again after a change, and for another user.
	text, err := os.ReadFile(l.Library)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	o, err = openPath(path)
	require.NoError(t, err)
	o.close()
	c.is(o)
	require.NoError(t, p.admit(t.Context(), &c))
	assert.Len(t, p.Libraries(), 1)

	// The memory of rejected files is bounded.
	for i := range maxRejected + 10 {
		other := candidate{tenant: tenant{uid: uint32(i)}}
		p.reject(&other, 0)
	}
	assert.LessOrEqual(t, len(p.rejected), maxRejected)
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// A user attaches at most its share of libraries. Libraries of another user are attached.
func TestAdmit_AttachedShare(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	text, err := os.ReadFile(l.Library)
	require.NoError(t, err)
	p.looking.Lock()
	defer p.looking.Unlock()
	candidateOf := func(n int, who tenant) *candidate {
		path := filepath.Join(filepath.Dir(l.Library), fmt.Sprintf("libcuda.so.%d", n+2))
		require.NoError(t, os.WriteFile(path, text, 0o600))
		o, err := openPath(path)
		require.NoError(t, err)
		o.close()
		c := &candidate{library: libcuda, path: path, tenant: who}
		c.is(o)
		return c
	}
	for n := range 40 {
		require.NoError(t, p.admit(t.Context(), candidateOf(n, tenant{uid: 1000})))
	}
	held := 0
	for _, a := range p.libraries {
		held += a.descriptors()
	}
	each := held / len(p.libraries)
	t.Logf("%d descriptors for each of %d libraries", each, len(p.libraries))
	if p.multi {
		assert.Less(t, held, userDescriptors+each)
		assert.Less(t, len(p.libraries), 40)
	}
	had := len(p.libraries)
	assert.EqualValues(t, 40-had, snapshot(t, p).Losses.Skipped[SkipUserAttached])
	require.NoError(t, p.admit(t.Context(), candidateOf(40, tenant{uid: 1001})))
	assert.Len(t, p.libraries, had+1, "another user's")
}

// Collections and Close do not wait for a read that never ends.
func TestClose_WhileAReadHangs(t *testing.T) {
	l := stubcuda.Build(t)
	root := t.TempDir()
	dir := inventedProcess(t, filepath.Join(root, "proc"), 7, 1000, 1)
	fifo := filepath.Join(dir, "maps")
	p := New(Options{Root: root, RescanInterval: time.Millisecond})
	started(t, l, p)
	require.NoError(t, os.Remove(fifo))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.Eventually(t, func() bool { return p.finder.dog.Pending() > 0 }, waitLimit, time.Millisecond)
	began := time.Now()
	snapshot(t, p)
	require.NoError(t, p.Close())
	assert.Less(t, time.Since(began), 5*scanLimit)
	require.Eventually(t, func() bool {
		if w, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			_ = w.Close()
		}
		return p.finder.dog.Pending() == 0
	}, waitLimit, time.Millisecond)
}

// The path of a mapped file names another file after a bind mount over it. The file that is mapped is attached to.
func TestProbe_BindMountOverMappedLibrary(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("no library"), 0o600))
	unwatchedLook(p, func() {
		c.Must("open %s", l.Library)
		if err := unix.Mount(other, l.Library, "", unix.MS_BIND, ""); err != nil {
			t.Skip("no bind mounts here: ", err)
		}
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(l.Library, unix.MNT_DETACH)) })
	})
	require.Eventually(t, func() bool { return len(p.Libraries()) == 1 }, waitLimit, 10*time.Millisecond)
	c.Must("launch 10 1 2 32")
	got := snapshot(t, p).of(c.PID())
	require.NotNil(t, got)
	assert.EqualValues(t, 10, got.Launches[0].Calls)
	assert.NotEqual(t, fileAt(t, other).inode, p.Libraries()[0].Inode)
}

// unwatchedLook calls do while the probe does not search for libraries.
func unwatchedLook(p *Probe, do func()) {
	p.looking.Lock()
	defer p.looking.Unlock()
	do()
}

// A user can give a file below an overlay the inode number, size and modification time of another
// file. The creation time differs, so the two files stay distinct.
func TestFile_ForgedOverlayIdentity(t *testing.T) {
	stat := func(path string) (s unix.Stat_t) {
		require.NoError(t, unix.Stat(path, &s))
		return s
	}
	const name = "libcuda.so.1"
	one, two := tmpfs.Mount(t, "64m"), tmpfs.Mount(t, "64m")
	require.NoError(t, os.WriteFile(filepath.Join(one, name), []byte("the library"), 0o600))
	want := stat(filepath.Join(one, name))
	time.Sleep(50 * time.Millisecond) // the kernel's clock for files may have 10 ms

	// Each tmpfs assigns inode numbers in order: create files until one has the number.
	path := filepath.Join(two, name)
	for n := 0; ; n++ {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		if stat(path).Ino == want.Ino {
			break
		}
		require.Less(t, n, 10_000, "no file has the inode number")
		require.NoError(t, os.Rename(path, filepath.Join(two, strconv.Itoa(n))))
	}
	require.NoError(t, os.Truncate(path, want.Size))
	require.NoError(t, os.Chtimes(path, time.Unix(want.Atim.Unix()), time.Unix(want.Mtim.Unix())))

	genuine, forged := filepath.Join(overlayOf(t, one), name), filepath.Join(overlayOf(t, two), name)
	a, b := stat(genuine), stat(forged)
	require.Equal(t, []any{a.Ino, a.Size, a.Mtim}, []any{b.Ino, b.Size, b.Mtim}, "the file is forged")
	assert.Equal(t, uint64(overlay), fileAt(t, genuine).device)
	assert.Equal(t, fileAt(t, genuine).inode, fileAt(t, forged).inode)
	assert.NotEqual(t, fileAt(t, genuine), fileAt(t, forged))
	assert.Equal(t, fileAt(t, genuine), fileAt(t, filepath.Join(overlayOf(t, one), name)), "another container of the image")
}

// A file on an overlay over a disk has extents; one on an overlay over tmpfs has none, as one over FUSE.
func TestTrusted(t *testing.T) {
	l := stubcuda.Build(t)
	disk := overlayOf(t, filepath.Dir(l.Library))
	memory := tmpfs.Mount(t, "64m")
	text, err := os.ReadFile(l.Library)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(memory, "libcuda.so.1"), text, 0o600))
	inMemory := overlayOf(t, memory)

	// A process in a user namespace of its own.
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}, {ContainerID: 65534, HostID: 100000, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}, {ContainerID: 65534, HostID: 100000, Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Skip("no user namespaces: ", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	other := strconv.Itoa(cmd.Process.Pid)
	self := strconv.Itoa(os.Getpid())
	assert.True(t, inOurNamespace("/proc", self))
	assert.False(t, inOurNamespace("/proc", other))
	for _, c := range []struct {
		path, pid string
		want      bool
	}{
		{filepath.Join(disk, "libcuda.so.1"), other, true},
		{filepath.Join(inMemory, "libcuda.so.1"), self, true},
		{filepath.Join(inMemory, "libcuda.so.1"), other, false},
		{l.Library, other, true},
	} {
		o, err := openPath(c.path)
		require.NoError(t, err)
		f, err := o.read()
		require.NoError(t, err)
		if c.path != filepath.Join(disk, "libcuda.so.1") || hasExtents(f) { // where /tmp is no disk it has none
			assert.Equal(t, c.want, o.trusted("/proc", c.pid, f), "%s of %s", c.path, c.pid)
		}
		require.NoError(t, f.Close())
		o.close()
	}
	// All its user ids belong to the creator of the namespace, which is root here.
	assert.Equal(t, uint32(0), tenantOf("/proc", other).uid)
}

// An unreadable file concerns one user: the probe starts, and observes the others.
func TestStart_UnreadableLibrary(t *testing.T) {
	l := stubcuda.Build(t)
	require.NoError(t, started(t, l, New(Options{})).Close()) // skips where eBPF is not allowed
	secret := l.Start(t)
	secret.Must("open %s", l.Library)
	open := l.Start(t)
	open.Must("open %s", l.Marked)
	for dir := filepath.Dir(l.Library); dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	require.NoError(t, os.Chmod(l.Library, 0o600))
	first, second := observer(t, l.Marked, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_PTRACE)
	require.Empty(t, first.Error)
	open.Must("launch 7 1 2 32")
	got := second().Snapshot.of(open.PID())
	require.NotNil(t, got)
	assert.EqualValues(t, 7, got.Launches[0].Calls)
}

func TestFUSEOfRoot(t *testing.T) {
	info := []byte("36 35 0:48 / /mnt rw,nosuid shared:1 - fuse.x src rw,user_id=1000,group_id=0,allow_other\n" +
		"37 35 0:49 / /m\\040nt rw - fuse.y src rw,user_id=0,group_id=0\n" + "x\n")
	assert.False(t, fuseOfRoot(info, 0, 48))
	assert.True(t, fuseOfRoot(info, 0, 49))
	assert.False(t, fuseOfRoot(info, 0, 50))
}
