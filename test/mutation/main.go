// SPDX-License-Identifier: Apache-2.0

// Command mutation checks that the guarantees of README.md and docs/deploying.md have tests. For
// each guarantee it breaks the code or a configuration in a copy of the source tree and runs the
// test. The test must fail. A test that passes, does not compile or is skipped is an error, and so
// is a missing text.
//
//	go run ./test/mutation [-list] [-only REGEXP] [-C DIRECTORY]
//
// Tests of binaries use bin and .tools of the tree, so run make build first. Code in C is compiled
// with each mutation. The programs for eBPF need the compiler of scripts/bpf. The exit status is 1 if
// a guarantee has no test.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// timeout limits one run of a test.
const timeout = 15 * time.Minute

func main() {
	list := flag.Bool("list", false, "list the mutations")
	only := flag.String("only", "", "run only mutations whose guarantee, file or test matches")
	root := flag.String("C", ".", "root of the source tree")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root, *only, *list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run.
	}
}

func run(ctx context.Context, root, only string, list bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var chosen []mutation
	for _, m := range mutations {
		if pattern.MatchString(m.String()) {
			chosen = append(chosen, m)
		}
	}
	if list {
		for _, m := range chosen {
			fmt.Println(m)
		}
		return nil
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no mutation matches %q", only)
	}
	t, err := copyTree(ctx, root)
	if err != nil {
		return err
	}
	defer t.remove()
	var failed []error
	for _, m := range chosen {
		began := time.Now()
		err := t.check(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", m, err))
			fmt.Printf("NOT GUARDED  %s: %v\n", m, err)
			continue
		}
		fmt.Printf("guarded  %s (%.0f s)\n", m, time.Since(began).Seconds())
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d mutations were not detected", len(failed), len(chosen))
	}
	fmt.Printf("%d mutations detected\n", len(chosen))
	return nil
}

// tree is a copy of the source tree.
type tree struct {
	base, root string
	builds     map[string]string // by file: the command that compiles it
	intact     map[string]error  // by test: the result without a mutation
}

// copyTree copies all files that git tracks or would track. The files of bin, and .tools, are links.
func copyTree(ctx context.Context, from string) (*tree, error) {
	from, err := filepath.Abs(from)
	if err != nil {
		return nil, err
	}
	base, err := os.MkdirTemp("", "gpuflight-mutation-")
	if err != nil {
		return nil, err
	}
	t := &tree{base: base, root: filepath.Join(base, "tree"), builds: builds, intact: map[string]error{}}
	if err := t.fill(ctx, from); err != nil {
		t.remove()
		return nil, fmt.Errorf("copy %s: %w", from, err)
	}
	return t, nil
}

func (t *tree) fill(ctx context.Context, from string) error {
	git := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = from
	names, err := git.Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed
		}
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		to := filepath.Join(t.root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, info.Mode().Perm()); err != nil {
			return err
		}
	}
	// If a target is missing the link is broken or absent, and tests report what they need.
	links := []string{".tools"}
	binaries, err := os.ReadDir(filepath.Join(from, "bin"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, b := range binaries {
		links = append(links, filepath.Join("bin", b.Name()))
	}
	if err := os.MkdirAll(filepath.Join(t.root, "bin"), 0o755); err != nil {
		return err
	}
	for _, name := range links {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(t.root, name)); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) remove() { _ = os.RemoveAll(t.base) }

// check applies a mutation, runs its test and reverts the mutation.
func (t *tree) check(ctx context.Context, m mutation) error {
	path := filepath.Join(t.root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte(m.old)) {
		return fmt.Errorf("%s does not contain %q", m.file, m.old)
	}
	intact, known := t.intact[m.test()]
	if !known {
		out, err := t.test(ctx, m)
		if err != nil {
			intact = fmt.Errorf("the test fails without the mutation: %w\n%s", err, out)
		} else if bytes.Contains(out, []byte("--- SKIP")) || !bytes.Contains(out, []byte("--- PASS")) {
			intact = fmt.Errorf("the test does not run here\n%s", out)
		}
		t.intact[m.test()] = intact
	}
	if intact != nil {
		return intact
	}
	out, err, failed := t.mutated(ctx, m, path, text)
	if failed != nil {
		return failed
	}
	if err == nil {
		return errors.New("the test passes with the mutation")
	}
	if !bytes.Contains(out, []byte("--- FAIL")) && !bytes.Contains(out, []byte("panic: ")) {
		return fmt.Errorf("the test does not run with the mutation: %w\n%s", err, out)
	}
	return nil
}

// mutated runs a mutation's test with the mutation. err is the result of the test. failed is the error
// of a build or of a file.
func (t *tree) mutated(ctx context.Context, m mutation, path string, text []byte) (out []byte, err, failed error) {
	if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte(m.old), []byte(m.replacement)), 0o600); err != nil {
		return nil, nil, err
	}
	failed = t.build(ctx, m.file)
	if failed == nil {
		out, err = t.test(ctx, m)
	}
	if restore := os.WriteFile(path, text, 0o600); restore != nil {
		return nil, nil, errors.Join(failed, restore)
	}
	return out, err, errors.Join(failed, t.build(ctx, m.file))
}

// build compiles a file that go test does not compile.
func (t *tree) build(ctx context.Context, file string) error {
	command, ok := t.builds[file]
	if !ok {
		return nil
	}
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", command)
	cmd.Dir = t.root
	cmd.Env = append(os.Environ(), "PWD="+t.root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", file, err, out)
	}
	return nil
}

// test runs a mutation's test in its short form.
func (t *tree) test(ctx context.Context, m mutation) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count", "1", "-v", "-run", m.run, m.pkg)
	cmd.Dir = t.root
	for _, v := range os.Environ() {
		// Paths of binaries in variables would select those of the tree instead of the copy.
		if !strings.HasPrefix(v, "GPUFLIGHT_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GPUFLIGHT_REQUIRE=1", "PWD="+t.root)
	return cmd.CombinedOutput()
}
