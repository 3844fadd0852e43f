// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attack is an action of an unprivileged user. It runs in its own process, in an empty writable
// folder, until it is killed. library is a working driver library. It calls ready after the first
// action.
type attack struct {
	name string
	run  func(dir, library string, ready func()) error
	// skipped requires that files of the attack are skipped and counted.
	skipped bool
}

// attacks run separately and all at once.
var attacks = []attack{
	{name: "symbols", run: symbols, skipped: true},
	{name: "fifo", run: fifo, skipped: true},
	{name: "files", run: files, skipped: true},
	{name: "libraries", run: libraries, skipped: true},
	{name: "mappings", run: mappings, skipped: true},
	{name: "garbage", run: garbage, skipped: true},
	{name: "kernels", run: kernels},
}

func attackNamed(name string) *attack {
	for i := range attacks {
		if attacks[i].name == name {
			return &attacks[i]
		}
	}
	return nil
}

// symbols repeatedly maps libraries of 1 MB with 40,000 symbols that share one name of 40 KB.
func symbols(dir, _ string, ready func()) error {
	const count, nameBytes = 40_000, 40_000
	image := library(count, bytes.Repeat([]byte{'a'}, nameBytes))
	for n := 0; ; n++ {
		path := filepath.Join(dir, "libcuda.so."+fmt.Sprint(n))
		if err := mapNew(path, image); err != nil {
			return err
		}
		if n == 0 {
			ready()
		}
		time.Sleep(2 * time.Second)
		if err := os.Remove(path); err != nil {
			return err
		}
	}
}

// fifo maps a library and repeatedly exchanges it with a FIFO.
func fifo(dir, _ string, ready func()) error {
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		return err
	}
	for n := 0; ; n++ {
		path := filepath.Join(dir, "libcuda.so."+fmt.Sprint(n))
		if err := mapNew(path, []byte("no library")); err != nil {
			return err
		}
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) {
			// An even number of times, so that the FIFO has its name again.
			for range 2 {
				if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE); err != nil {
					return err
				}
				time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
			}
		}
		if n == 20 {
			ready()
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
}

// files maps 6,000 files with the name of a library.
func files(dir, _ string, ready func()) error {
	for n := range 6000 {
		if err := mapNew(filepath.Join(dir, "libcuda.so."+fmt.Sprint(n)), []byte("no library")); err != nil {
			return err
		}
	}
	ready()
	select {}
}

// libraries maps 200 copies of a working library, so that the agent attaches to them.
func libraries(dir, library string, ready func()) error {
	image, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	for n := range 200 {
		if err := mapNew(filepath.Join(dir, "libcuda.so."+fmt.Sprint(n)), image); err != nil {
			return err
		}
	}
	ready()
	select {}
}

// mappings has 50,000 mappings and creates more than the kernel's buffer can report.
func mappings(dir, _ string, ready func()) error {
	path := filepath.Join(dir, "libnccl.so.2")
	if err := os.WriteFile(path, bytes.Repeat([]byte{'n'}, 64<<10), 0o644); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	for n := range 50_000 {
		// Neighbors at the same offset are not merged.
		if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err != nil {
			return fmt.Errorf("mapping %d: %w", n, err)
		}
	}
	ready()
	for n := 0; ; n++ {
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		if err := unix.Munmap(b); err != nil {
			return err
		}
		// 20,000 per second, so that other processes run too.
		if n%200 == 199 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// garbage repeatedly maps new files: random bytes after an ELF header.
func garbage(dir, _ string, ready func()) error {
	random := rand.New(rand.NewPCG(1, 2))
	for n := 0; ; n++ {
		image := library(50, []byte("cuLaunchKernel"))
		for range 1 + n%20 {
			image[64+random.IntN(len(image)-64)] = byte(random.Uint32())
		}
		path := filepath.Join(dir, "libcudart.so."+fmt.Sprint(n))
		if err := mapNew(path, image); err != nil {
			return err
		}
		if n == 100 {
			ready()
		}
		time.Sleep(5 * time.Millisecond)
		if n%1000 == 999 {
			// Mappings of deleted files stay and count towards the limit of 65,530.
			if n > 30_000 {
				time.Sleep(time.Hour)
			}
		}
		if n >= 500 {
			if err := os.Remove(filepath.Join(dir, "libcudart.so."+fmt.Sprint(n-500))); err != nil {
				return err
			}
		}
	}
}

// kernels launches 20,000 different kernels, to fill a kernel table that all processes share.
func kernels(_, library string, ready func()) error {
	cmd := exec.CommandContext(context.Background(), filepath.Join(filepath.Dir(library), "calls"))
	// The kernel sends the signal when the starting thread exits.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	answers := bufio.NewReader(out)
	for _, command := range []string{"open " + library, "kernels 20000"} {
		if _, err := fmt.Fprintln(in, command); err != nil {
			return err
		}
		if answer, err := answers.ReadString('\n'); err != nil || answer != "ok\n" {
			return fmt.Errorf("%s: %q, %w", command, answer, err)
		}
	}
	ready()
	select {}
}

// mapNew writes a file and maps it like a library.
func mapNew(path string, image []byte) error {
	if err := os.WriteFile(path, image, 0o644); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = unix.Mmap(int(f.Fd()), 0, max(len(image), 4096), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	return err
}

// library returns an ELF file with the given number of dynamic symbols of one name, in an
// executable segment.
func library(symbols int, name []byte) []byte {
	le := binary.LittleEndian
	const header, section, segment, symbol = 64, 64, 56, 24
	tableAt := header + segment + 3*section
	namesAt := tableAt + symbols*symbol
	size := namesAt + 1 + len(name) + 1
	b := make([]byte, size)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[32:], header)
	le.PutUint64(b[40:], header+segment)
	le.PutUint16(b[52:], header)
	le.PutUint16(b[54:], segment)
	le.PutUint16(b[56:], 1)
	le.PutUint16(b[58:], section)
	le.PutUint16(b[60:], 3)
	p := b[header:]
	le.PutUint32(p, uint32(elf.PT_LOAD))
	le.PutUint32(p[4:], uint32(elf.PF_X|elf.PF_R))
	le.PutUint64(p[32:], uint64(size))
	le.PutUint64(p[40:], uint64(size))
	s := b[header+segment+section:]
	le.PutUint32(s[4:], uint32(elf.SHT_DYNSYM))
	le.PutUint64(s[24:], uint64(tableAt))
	le.PutUint64(s[32:], uint64(symbols*symbol))
	le.PutUint32(s[40:], 2)
	le.PutUint64(s[56:], symbol)
	s = s[section:]
	le.PutUint32(s[4:], uint32(elf.SHT_STRTAB))
	le.PutUint64(s[24:], uint64(namesAt))
	le.PutUint64(s[32:], uint64(1+len(name)+1))
	for i := range symbols {
		e := b[tableAt+i*symbol:]
		le.PutUint32(e, 1)
		e[4] = byte(elf.STT_FUNC)
		le.PutUint16(e[6:], 1)
		le.PutUint64(e[8:], uint64(tableAt))
	}
	copy(b[namesAt+1:], name)
	return b
}
