// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubernetes

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	core "k8s.io/api/core/v1"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// resolve returns the environment of an injected container as the kubelet sets it. It has the fields of
// the pod and the key of the Secret. Earlier variables replace $(NAME).
func resolve(t *testing.T, pod *core.Pod, c core.Container, key string) (out []string) {
	t.Helper()
	values := map[string]string{}
	for _, e := range c.Env {
		value := regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(e.Value, func(reference string) string {
			got, ok := values[reference[2:len(reference)-1]]
			require.True(t, ok, "%s of %s", reference, e.Name)
			return got
		})
		switch from := e.ValueFrom; {
		case from == nil:
		case from.SecretKeyRef != nil:
			value = key
		default:
			value = map[string]string{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": "node-a"}[from.FieldRef.FieldPath]
			require.NotEmpty(t, value, from.FieldRef.FieldPath)
		}
		values[e.Name] = value
		out = append(out, e.Name+"="+value)
	}
	return out
}

// install copies a file to a path below a root.
func install(t *testing.T, from, root, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	path := filepath.Join(root, to)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, text, 0o755))
}

// in runs a program as a container does: with its own root, process ids and /proc.
func in(t *testing.T, root string, environment []string, command ...string) (string, error) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{
		"--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--root=" + root, "--mount-proc",
	}, command...)...)
	cmd.Env = environment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestInject_Container runs what the policy adds to a pod. The init container's command runs in a root
// with the files of the image. A program runs in a root of its own with the injected environment, a
// fake driver, and a fake CUPTI where CUDA's images have it. The program is recorded.
func TestInject_Container(t *testing.T) {
	const key = "gpfl_abcdefgh_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
	pod := inject(t, samplePod(t))
	require.NotNil(t, pod)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox to stand for the image's: install Debian's package busybox-static")
	}
	bin := filepath.Join(process.Root(t), "bin")
	if _, err := os.Stat(filepath.Join(bin, "libgpuflight.so")); err != nil {
		process.Missing(t, err.Error()+": build it with make build")
	}
	fake := cuptitest.Build(t)

	image := t.TempDir()
	install(t, busybox, image, "usr/local/bin/cp")
	for _, name := range []string{"libgpuflight.so", "libgpuflight-recorder.so"} {
		install(t, filepath.Join(bin, name), image, "usr/local/lib/gpuflight/"+name)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(image, "opt/gpuflight"), 0o755))
	if out, err := in(t, image, nil, "/usr/local/bin/cp", "--help"); err != nil {
		t.Skipf("a container-like root is not permitted here: %v: %s", err, out)
	}
	copier := pod.Spec.InitContainers[0]
	out, err := in(t, image, nil, copier.Command...)
	require.NoError(t, err, out)

	app := t.TempDir()
	program := filepath.Join(t.TempDir(), "program")
	text, err := exec.CommandContext(t.Context(), "cc", "-o", program, "testdata/program.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", text)
	install(t, program, app, "app/program")
	install(t, filepath.Join(fake, "libcuda.so.1"), app, "lib/libcuda.so.1")
	install(t, filepath.Join(fake, "libcupti.so.13"), app, "usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13")
	libraries, err := exec.CommandContext(t.Context(), "ldd", program, filepath.Join(bin, "libgpuflight-recorder.so"), filepath.Join(fake, "libcuda.so.1")).Output()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(libraries), -1) {
		install(t, m[1], app, m[1])
	}
	volume := filepath.Join(app, pod.Spec.Containers[0].VolumeMounts[0].MountPath)
	require.NoError(t, os.MkdirAll(filepath.Dir(volume), 0o755))
	require.NoError(t, os.Rename(filepath.Join(image, copier.VolumeMounts[0].MountPath), volume))

	// The agent of the node.
	var mu sync.Mutex
	var authorization []string
	kernels, resources := 0, map[string]string{}
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			plain, err := gzip.NewReader(r.Body)
			if assert.NoError(t, err) {
				body = plain
			}
		}
		text, err := io.ReadAll(body)
		assert.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		authorization = append(authorization, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/x-protobuf")
		if r.URL.Path != "/v1/traces" {
			return
		}
		request := ptraceotlp.NewExportRequest()
		assert.NoError(t, request.UnmarshalProto(text))
		for _, rs := range request.Traces().ResourceSpans().All() {
			for name, v := range rs.Resource().Attributes().All() {
				resources[name] = v.AsString()
			}
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					if strings.Contains(s.Name(), "gemm") {
						kernels++
					}
				}
			}
		}
	}))
	defer agent.Close()
	const service = "gpuflight-agent.gpuflight.svc"
	require.NoError(t, os.MkdirAll(filepath.Join(app, "etc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(app, "etc/hosts"), []byte("127.0.0.1 "+service+"\n"), 0o644))
	environment := resolve(t, pod, pod.Spec.Containers[0], key)
	for i, v := range environment {
		environment[i] = strings.Replace(v, service+":4318", service+agent.URL[strings.LastIndexByte(agent.URL, ':'):], 1)
	}
	environment = append(environment, "GPUFLIGHT_LOG_LEVEL=info")
	began := time.Now()
	out, err = in(t, app, environment, "/app/program")
	require.NoError(t, err, out)
	assert.Contains(t, out, "done")
	t.Logf("%s in %s", bytes.TrimSpace([]byte(out)), time.Since(began))

	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, 100, kernels, "kernels of the program")
	for _, a := range authorization {
		assert.Equal(t, "Bearer "+key, a)
	}
	for name, want := range map[string]string{
		"k8s.namespace.name": "team-a", "k8s.pod.name": "inference", "k8s.container.name": "server", "k8s.node.name": "node-a", "process.executable.name": "program",
	} {
		assert.Equal(t, want, resources[name], name)
	}
}
