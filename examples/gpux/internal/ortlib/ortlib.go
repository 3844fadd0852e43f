// SPDX-License-Identifier: Apache-2.0

// Package ortlib finds the shared library of ONNX Runtime, and installs it from a wheel of PyPI when
// it is asked to.
package ortlib

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
)

// Version is the version of ONNX Runtime that Install installs.
const Version = "1.27.0"

// Wheel is a file of PyPI that contains the library.
type Wheel struct {
	Package, File string
	SHA256        string
}

// wheels are the pinned files by platform and by whether they support GPUs.
var wheels = map[string]Wheel{
	"linux/amd64": {
		"onnxruntime", "onnxruntime-1.27.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
		"7c65a7438632d55dfbc8a02ee60bd6cf7dd9d1ba05a43d4b851452f32338e194",
	},
	"linux/arm64": {
		"onnxruntime", "onnxruntime-1.27.0-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
		"c6fddce0539a4898c7bef35b052ffd37935b2190e35488eab99ce91887743ea1",
	},
	"linux/amd64/gpu": {
		"onnxruntime-gpu", "onnxruntime_gpu-1.27.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
		"b2b8d6afabf3c23c2c698639a16388816dc7298f388a9ddddf504b283990ea01",
	},
}

// Platform returns the wheel for this machine.
func Platform(gpu bool) (Wheel, error) {
	key := runtime.GOOS + "/" + runtime.GOARCH
	if gpu {
		key += "/gpu"
	}
	w, ok := wheels[key]
	if !ok {
		return w, fmt.Errorf("no wheel of ONNX Runtime is known for %s; install the library by other means and set GPUX_ORT_LIB to its path", key)
	}
	return w, nil
}

// Home is the folder of gpux: GPUX_HOME, which is ~/.gpux by default.
func Home() (string, error) {
	if dir := os.Getenv("GPUX_HOME"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".gpux"), err
}

// Directory is where Install puts libraries: lib in Home.
func Directory() (string, error) {
	home, err := Home()
	return filepath.Join(home, "lib"), err
}

// Found is a library and how it was found.
type Found struct {
	Path   string `json:"path"`
	Source string `json:"source"`
}

// Find returns the library to use: that of explicit or GPUX_ORT_LIB, else the newest of Directory
// (one for GPUs before others), else the system's. The error lists where it looked.
func Find(explicit string) (Found, error) {
	for _, o := range []Found{{explicit, "--ort-lib"}, {os.Getenv("GPUX_ORT_LIB"), "GPUX_ORT_LIB"}} {
		if o.Path == "" {
			continue
		}
		if _, err := os.Stat(o.Path); err != nil {
			return Found{}, fmt.Errorf("%s: %w", o.Source, err)
		}
		return o, nil
	}
	all := Installed()
	if len(all) > 0 {
		return all[0], nil
	}
	dir, _ := Directory() // only for the message
	return Found{}, fmt.Errorf("there is no ONNX Runtime in %s or the system's folders; run `gpux runtime install`", dir)
}

// Installed lists libraries in the order in which Find prefers them.
func Installed() (all []Found) {
	var patterns []Found
	if dir, err := Directory(); err == nil {
		patterns = append(patterns, Found{filepath.Join(dir, "onnxruntime-gpu-*", name), "installed"}, Found{filepath.Join(dir, "onnxruntime-[0-9]*", name), "installed"})
	}
	for _, dir := range []string{"/usr/local/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/opt/onnxruntime/lib"} {
		patterns = append(patterns, Found{filepath.Join(dir, name), "system"})
	}
	for _, p := range patterns {
		found, _ := filepath.Glob(p.Path) // the patterns are valid
		sort.Sort(sort.Reverse(sort.StringSlice(found)))
		for _, path := range found {
			all = append(all, Found{path, p.Source})
		}
	}
	return all
}

const name = "libonnxruntime.so*"

// Install gets the wheel with pip, so that the user's own index and proxy apply, or takes it from the
// file from. It checks the digest and unpacks the libraries. It returns the path of the library. If the
// library is there already, it does nothing.
func Install(ctx context.Context, gpu bool, from string, progress io.Writer) (string, error) {
	w, err := Platform(gpu)
	if err != nil {
		return "", err
	}
	dir, err := Directory()
	if err != nil {
		return "", err
	}
	target := filepath.Join(dir, w.Package+"-"+Version)
	library := filepath.Join(target, "libonnxruntime.so."+Version)
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if from == "" {
		temp, err := os.MkdirTemp(dir, ".download-")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(temp)
		if from, err = download(ctx, w, temp, progress); err != nil {
			return "", err
		}
	}
	if err := verify(from, w.SHA256); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	if err := unpack(from, temp); err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if _, err := os.Stat(filepath.Join(temp, filepath.Base(library))); err != nil {
		return "", fmt.Errorf("%s has no library of ONNX Runtime", from)
	}
	if err := os.Chmod(temp, 0o755); err != nil { // MkdirTemp makes folders for the owner only
		return "", err
	}
	return library, os.Rename(temp, target)
}

// download runs pip. The interpreter's own version does not matter, since only the library is used.
func download(ctx context.Context, w Wheel, dir string, progress io.Writer) (string, error) {
	requirements := filepath.Join(dir, "requirements.txt")
	line := w.Package + "==" + Version + " --hash=sha256:" + w.SHA256 + "\n"
	if err := os.WriteFile(requirements, []byte(line), 0o644); err != nil {
		return "", err
	}
	parts := strings.Split(strings.TrimSuffix(w.File, ".whl"), "-")
	args := []string{
		"-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--disable-pip-version-check",
		"--python-version", "3.12", "--dest", dir, "-r", requirements,
	}
	for platform := range strings.SplitSeq(parts[len(parts)-1], ".") {
		args = append(args, "--platform", platform)
	}
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Stdout, cmd.Stderr = progress, progress
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("python3 -m pip download of %s %s failed: %w; pass a wheel that you have with --from", w.Package, Version, err)
	}
	return filepath.Join(dir, w.File), nil
}

func verify(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("%s has the SHA-256 %s, and that of the pinned wheel is %s", path, got, want)
	}
	return nil
}

// unpack writes the libraries of a wheel to dir.
func unpack(wheel, dir string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		base, inside := strings.CutPrefix(f.Name, "onnxruntime/capi/")
		if !inside || !strings.HasPrefix(base, "libonnxruntime") || strings.ContainsAny(base, `/\`) {
			continue
		}
		if err := copyFile(f, filepath.Join(dir, base)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(f *zip.File, path string) (err error) {
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, in, int64(f.UncompressedSize64))
	return errors.Join(err, out.Close())
}
