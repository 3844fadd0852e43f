// SPDX-License-Identifier: Apache-2.0

package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

const (
	bucketName = "default"
	// childEnv makes the test binary a child that opens the databases of a folder.
	childEnv = "GPUFLIGHT_BOLTCHECK_CHILD"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// options are those of contrib's file_storage.
func options() *bbolt.Options {
	return &bbolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

// child does to each database what a component does. It dies with the first that bbolt cannot use.
func child(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		fmt.Println(e.Name())
		db, err := bbolt.Open(filepath.Join(dir, e.Name()), 0o600, options())
		if err != nil {
			panic(err)
		}
		if err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
			if err != nil {
				return err
			}
			var keys [][]byte
			total := 0
			if err := b.ForEach(func(k, v []byte) error {
				keys = append(keys, bytes.Clone(k))
				for _, x := range v {
					total += int(x)
				}
				return nil
			}); err != nil {
				return err
			}
			for i, k := range keys {
				if i%2 == 0 {
					err = b.Delete(k)
				} else {
					err = b.Put(k, make([]byte, i*100))
				}
				if err != nil && !errors.Is(err, bbolterrors.ErrIncompatibleValue) {
					return err
				}
			}
			return b.Put([]byte("new"), make([]byte, 10_000))
		}); err != nil {
			panic(err)
		}
		if err := db.Close(); err != nil {
			panic(err)
		}
	}
}

// database makes a database by some random transactions, and returns its bytes.
func database(t testing.TB, random *rand.Rand, transactions int, each func(file []byte)) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	opt := options()
	opt.NoFreelistSync = random.IntN(4) > 0
	db, err := bbolt.Open(path, 0o600, opt)
	require.NoError(t, err)
	for range transactions {
		deletes := 1 + random.IntN(9) // of ten operations
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
			require.NoError(t, err)
			for range random.IntN(60) {
				key := fmt.Appendf(nil, "key/%d/%s", random.IntN(200), strings.Repeat("k", random.IntN(80)))
				if random.IntN(10) < deletes {
					if k, _ := b.Cursor().Seek(key); k != nil {
						key = k
					}
					require.NoError(t, b.Delete(key))
					continue
				}
				value := make([]byte, random.IntN(400))
				if random.IntN(10) == 0 {
					value = make([]byte, random.IntN(100_000))
				}
				require.NoError(t, b.Put(key, value))
			}
			if random.IntN(4) == 0 {
				other, err := tx.CreateBucketIfNotExists([]byte("other"))
				require.NoError(t, err)
				require.NoError(t, other.Put([]byte("k"), make([]byte, random.IntN(100))))
				_, err = other.CreateBucketIfNotExists([]byte("nested"))
				require.NoError(t, err)
			}
			return nil
		}))
		if each != nil {
			each(read(t, path))
		}
	}
	compacted := filepath.Join(t.TempDir(), "compacted")
	to, err := bbolt.Open(compacted, 0o600, opt)
	require.NoError(t, err)
	require.NoError(t, bbolt.Compact(to, db, 1000))
	require.NoError(t, to.Close())
	require.NoError(t, db.Close())
	require.NoError(t, check(read(t, compacted)), "compacted")
	return read(t, path)
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func check(b []byte) error {
	_, err := Check(bytes.NewReader(b), int64(len(b)), bucketName)
	return err
}

// TestCheck_SoundFiles takes the file after each transaction, which is also what a kill leaves.
func TestCheck_SoundFiles(t *testing.T) {
	files, branches := 0, 0
	seeds := uint64(10)
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		seeds = 1000
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		database(t, random, 30, func(b []byte) {
			files++
			for page := range len(b) / os.Getpagesize() {
				if byteOrder.Uint16(b[page*os.Getpagesize()+8:]) == flagBranch {
					branches++
				}
			}
			require.NoError(t, check(b), "seed %d", seed)
		})
	}
	assert.EqualValues(t, 30*seeds, files)
	assert.Positive(t, branches, "no tree had more than one level")
	path := filepath.Join(t.TempDir(), "new")
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, check(read(t, path)), "a file without a bucket")
}

func TestCheck_DamagedFiles(t *testing.T) {
	sound := database(t, rand.New(rand.NewPCG(7, 0)), 30, nil)
	require.NoError(t, check(sound))
	page := os.Getpagesize()
	m := func(c *checker) meta {
		m, err := c.meta()
		require.NoError(t, err)
		return m
	}(&checker{r: bytes.NewReader(sound), size: int64(len(sound))})
	root := int(m.root) * page
	used := int(m.pages) * page
	for name, change := range map[string]func(b []byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"one byte":        func(b []byte) []byte { return b[:1] },
		"half":            func(b []byte) []byte { return b[:used/2] },
		"odd size":        func(b []byte) []byte { return b[:used/2+123] },
		"one page short":  func(b []byte) []byte { return b[:used-page] },
		"both headers":    func(b []byte) []byte { clear(b[:2*page]); return b },
		"wrong magic":     func(b []byte) []byte { b[16], b[page+16] = 0, 0; return b },
		"wrong checksum":  func(b []byte) []byte { b[16+56]++; b[page+16+56]++; return b },
		"garbage":         func(b []byte) []byte { garbage(b); return b },
		"root zeroed":     func(b []byte) []byte { clear(b[root : root+page]); return b },
		"root of garbage": func(b []byte) []byte { garbage(b[root : root+page]); return b },
		"root's number":   func(b []byte) []byte { b[root]++; return b },
		"root's type":     func(b []byte) []byte { b[root+8] = flagFreelist; return b },
		"root's count":    func(b []byte) []byte { byteOrder.PutUint16(b[root+10:], 0xFFFF); return b },
		"root's overflow": func(b []byte) []byte { byteOrder.PutUint32(b[root+12:], 0xFFFFFFFF); return b },
		"key's place":     func(b []byte) []byte { byteOrder.PutUint32(b[root+16+4:], 0xFFFFFFF0); return b },
		"key's length":    func(b []byte) []byte { byteOrder.PutUint32(b[root+16+8:], 0xFFFFFFF0); return b },
		"value's length":  func(b []byte) []byte { byteOrder.PutUint32(b[root+16+12:], 0xFFFFFFF0); return b },
		"page used twice": func(b []byte) []byte { extend(t, b); return b },
		"bucket is none":  func(b []byte) []byte { byteOrder.PutUint32(b[root+16:], 0); return b },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, check(change(bytes.Clone(sound))), ErrDamaged)
		})
	}
	t.Run("one header", func(t *testing.T) {
		for _, at := range []int{0, page} {
			b := bytes.Clone(sound)
			clear(b[at : at+page])
			// The older header may lead to pages that were used again since; bbolt opens the file then too.
			if err := check(b); err != nil {
				require.ErrorIs(t, err, ErrDamaged)
			}
		}
	})
}

// extend makes a page overflow into the next one, which is in use too.
func extend(t *testing.T, b []byte) {
	t.Helper()
	c := &checker{r: bytes.NewReader(b), size: int64(len(b))}
	require.NoError(t, c.check())
	for id := 2; id+1 < int(c.pages); id++ {
		head := b[id*int(c.pageBytes):]
		used := func(id int) bool { return c.seen[id/8]&(1<<(id%8)) != 0 }
		single := byteOrder.Uint64(head) == uint64(id) && byteOrder.Uint32(head[12:]) == 0
		if used(id) && used(id+1) && single {
			byteOrder.PutUint32(head[12:], 1)
			return
		}
	}
	t.Fatal("no two used pages are adjacent")
}

func garbage(b []byte) {
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
}

// failing is a disk that cannot be read from some byte on.
type failing struct {
	r    *bytes.Reader
	from int64
}

var errDisk = errors.New("input/output error")

func (f failing) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > f.from {
		return 0, errDisk
	}
	return f.r.ReadAt(b, at)
}

func TestCheck_ReadError(t *testing.T) {
	b := database(t, rand.New(rand.NewPCG(1, 0)), 10, nil)
	for from := range int64(4) {
		_, err := Check(failing{bytes.NewReader(b), from * int64(os.Getpagesize())}, int64(len(b)), bucketName)
		require.ErrorIs(t, err, errDisk)
		require.NotErrorIs(t, err, ErrDamaged)
	}
}

// mutate damages a database, mostly where its structure is.
func mutate(b []byte, random *rand.Rand) []byte {
	page := os.Getpagesize()
	for range 1 + random.IntN(3) {
		if len(b) < 3*page {
			return b
		}
		at := random.IntN(len(b)/page) * page
		switch random.IntN(12) {
		case 0:
			b = b[:random.IntN(len(b))]
		case 1:
			clear(b[at : at+page])
		case 2:
			copy(b[at:at+page], b[random.IntN(len(b)/page)*page:])
		case 3:
			garbage(b[at : at+page])
		case 4:
			b[at+random.IntN(page)] ^= 1 << random.IntN(8)
		case 5:
			byteOrder.PutUint64(b[at:], random.Uint64N(uint64(len(b)/page)))
		case 6:
			byteOrder.PutUint16(b[at+8:], []uint16{1, 2, 4, 16}[random.IntN(4)])
		case 7:
			byteOrder.PutUint16(b[at+10:], uint16(random.IntN(300)))
		case 8:
			byteOrder.PutUint32(b[at+12:], random.Uint32N(8))
		case 9:
			byteOrder.PutUint32(b[at+16+4*random.IntN(64):], random.Uint32N(uint32(page)))
		case 10:
			b[at+random.IntN(256)] = byte(random.Uint32())
		case 11:
			byteOrder.PutUint64(b[at+16+8*random.IntN(32):], random.Uint64N(uint64(len(b)/page)))
		}
	}
	return b
}

// TestCheck_AcceptedFilesAreUsable damages files at random. A child process opens, reads and changes
// the files that the check accepts with bbolt, which must not panic or fault.
func TestCheck_AcceptedFilesAreUsable(t *testing.T) {
	if testing.Short() {
		t.Skip("writes some thousand files")
	}
	rounds := 3
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		rounds = 200
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	accepted, refused := 0, 0
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		sound := database(t, random, 4+random.IntN(8), nil)
		dir := t.TempDir()
		for i := range 200 {
			b := mutate(bytes.Clone(sound), random)
			if check(b) != nil {
				refused++
				continue
			}
			accepted++
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("db%d", i)), b, 0o600))
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			lines := strings.Fields(strings.SplitN(string(out), "\npanic", 2)[0])
			bad := lines[len(lines)-1]
			if keep := os.Getenv("GPUFLIGHT_KEEP"); keep != "" {
				_ = os.WriteFile(keep, read(t, filepath.Join(dir, bad)), 0o600)
			}
			t.Fatalf("round %d: the check accepts a file that bbolt cannot use: %v\n%s", round, err, out[max(0, len(out)-3000):])
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	t.Logf("%d files accepted, %d refused", accepted, refused)
	assert.Greater(t, accepted, 100)
	assert.Greater(t, refused, 100)
}

// FuzzCheck bounds the work and the memory of the check by the size of the file.
func FuzzCheck(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 0))
	sound := database(f, random, 2, nil)
	f.Add(sound)
	for range 30 {
		f.Add(mutate(bytes.Clone(sound), random))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = check(b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20+16*uint64(len(b)) {
			t.Fatalf("%d bytes allocated for a file of %d bytes", n, len(b))
		}
	})
}

func TestCheck_Space(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, options())
	require.NoError(t, err)
	change := func(value []byte) Space {
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
			require.NoError(t, err)
			if value == nil {
				return b.Delete([]byte("k"))
			}
			return b.Put([]byte("k"), value)
		}))
		b := read(t, path)
		space, err := Check(bytes.NewReader(b), int64(len(b)), bucketName)
		require.NoError(t, err)
		return space
	}
	full := change(make([]byte, 1<<20))
	assert.GreaterOrEqual(t, full.Used, int64(1<<20))
	assert.Less(t, full.Free, int64(1<<20))
	empty := change(nil)
	assert.Less(t, empty.Used, int64(1<<16))
	assert.GreaterOrEqual(t, empty.Free, int64(1<<20))
	require.NoError(t, db.Close())
}

// TestCheck_Depth has a chain of branches, as long as the file.
func TestCheck_Depth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	page := os.Getpagesize()
	b := read(t, path)[:2*page]
	const pages = 200
	for id := 2; id < pages; id++ {
		p := make([]byte, page)
		byteOrder.PutUint64(p, uint64(id))
		byteOrder.PutUint16(p[8:], flagBranch)
		byteOrder.PutUint16(p[10:], 2)
		byteOrder.PutUint32(p[16:], 2*branchBytes)
		byteOrder.PutUint64(p[24:], uint64(id+1))
		byteOrder.PutUint32(p[32:], branchBytes)
		byteOrder.PutUint32(p[36:], 1)
		p[48] = byte(255 - id)
		b = append(b, p...)
	}
	for at := 16; at < 2*page; at += page {
		byteOrder.PutUint64(b[at+16:], 2)
		byteOrder.PutUint64(b[at+32:], noFreelist)
		byteOrder.PutUint64(b[at+40:], pages)
		byteOrder.PutUint64(b[at+56:], fnvSum(b[at:at+56]))
	}
	require.ErrorContains(t, check(b), "more than 64 levels")
}

func fnvSum(b []byte) uint64 {
	sum := uint64(14695981039346656037)
	for _, x := range b {
		sum = (sum ^ uint64(x)) * 1099511628211
	}
	return sum
}

// BenchmarkCheck measures the check of a file of 1 GiB with values of 64 KiB, as a sending queue has,
// and of 1 KiB. Run it with -benchtime 1x.
func BenchmarkCheck(b *testing.B) {
	for _, valueBytes := range []int{64 << 10, 1 << 10} {
		b.Run(fmt.Sprintf("1GiB/%dKiB", valueBytes>>10), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "db")
			db, err := bbolt.Open(path, 0o600, options())
			require.NoError(b, err)
			value := make([]byte, valueBytes)
			total := 1 << 30 / valueBytes
			for from := range slices.Chunk(slices.Collect(func(yield func(int) bool) {
				for i := range total {
					if !yield(i) {
						return
					}
				}
			}), 10_000) {
				require.NoError(b, db.Update(func(tx *bbolt.Tx) error {
					bucket, err := tx.CreateBucketIfNotExists([]byte(bucketName))
					for _, i := range from {
						if err == nil {
							err = bucket.Put(binary.BigEndian.AppendUint64(nil, uint64(i)), value)
						}
					}
					return err
				}))
			}
			require.NoError(b, db.Close())
			f, err := os.Open(path)
			require.NoError(b, err)
			defer f.Close()
			info, err := f.Stat()
			require.NoError(b, err)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				_, err := Check(f, info.Size(), bucketName)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(info.Size())/1e9, "GB")
		})
	}
}
