// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func names(list []Provider) string {
	var all []string
	for _, p := range list {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		platform, preferred string
		force               bool
		want, rejected, err string
	}{
		{platform: "linux/amd64", want: "tensorrt cuda migraphx openvino cpu"},
		{platform: "linux/arm64", preferred: "auto", want: "tensorrt cuda migraphx openvino cpu"},
		{platform: "darwin/arm64", want: "coreml cpu"},
		{platform: "darwin/amd64", want: "coreml openvino cpu"},
		{platform: "windows/amd64", want: "tensorrt cuda directml openvino migraphx cpu"},
		{platform: "linux/amd64", preferred: "cuda", want: "cuda tensorrt migraphx openvino cpu"},
		{platform: "linux/amd64", preferred: "cpu", want: "cpu tensorrt cuda migraphx openvino"},
		{platform: "linux/amd64", preferred: "CUDAExecutionProvider", force: true, want: "cuda"},
		{platform: "linux/amd64", preferred: "TensorrtExecutionProvider", force: true, want: "tensorrt"},
		{platform: "linux/amd64", preferred: "rocm", force: true, want: "migraphx"},
		{platform: "linux/amd64", preferred: "ROCMExecutionProvider", force: true, want: "migraphx"},
		{platform: "linux/amd64", preferred: "trt-fp16", force: true, want: "tensorrt"},
		{platform: "windows/amd64", preferred: "DirectMLExecutionProvider", force: true, want: "directml"},
		{platform: "windows/amd64", preferred: "DmlExecutionProvider", force: true, want: "directml"},
		{platform: "windows/amd64", preferred: "dml", want: "directml tensorrt cuda openvino migraphx cpu"},
		{platform: "darwin/arm64", preferred: "core-ml", force: true, want: "coreml"},
		{platform: "darwin/arm64", preferred: "metal", force: true, want: "coreml"},
		{platform: "linux/amd64", preferred: "intel", force: true, want: "openvino"},
		{platform: "darwin/arm64", preferred: "cuda", want: "coreml cpu", rejected: "cuda: it does not exist on darwin/arm64"},
		{platform: "linux/amd64", preferred: "coreml", want: "tensorrt cuda migraphx openvino cpu", rejected: "coreml: it does not exist on linux/amd64"},
		{platform: "linux/amd64", preferred: "coreml", force: true, err: "the provider coreml does not work: it does not exist on linux/amd64; the providers are tensorrt, cuda"},
		{platform: "linux/amd64", preferred: "quantum", err: `there is no provider "quantum"; the providers of linux/amd64 are tensorrt, cuda`},
	} {
		name := c.platform + " " + c.preferred
		if c.force {
			name += " forced"
		}
		t.Run(name, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(c.platform, "/")
			got, rejected, err := order(c.preferred, c.force, goos, goarch)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, names(got))
			if c.rejected == "" {
				assert.Empty(t, rejected)
			} else {
				require.Len(t, rejected, 1)
				assert.Equal(t, c.rejected, rejected[0].Provider+": "+rejected[0].Reason)
			}
		})
	}
	t.Run("each provider is on a platform or has a reason", func(t *testing.T) {
		for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/arm64", "darwin/amd64", "windows/amd64"} {
			goos, goarch, _ := strings.Cut(platform, "/")
			assert.Equal(t, len(all), len(Priority(goos, goarch))+len(absent(goos, goarch)), platform)
		}
	})
}

func TestSettings(t *testing.T) {
	o := Options{GPUMemory: 2 << 30}
	for _, p := range all {
		want := map[string]string{}
		if p == cuda {
			want = map[string]string{"device_id": "0", "cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": "2147483648"}
		}
		assert.Equal(t, want, settings(p, o), "%s: in particular, Core ML has no coreml_flags", p.Name)
	}
}
