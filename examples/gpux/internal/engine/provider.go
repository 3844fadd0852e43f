// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Provider is an execution provider of ONNX Runtime.
type Provider struct {
	// Name is the short name: cuda.
	Name string `json:"name"`
	// ORT is the name in ONNX Runtime: CUDAExecutionProvider.
	ORT         string `json:"ort_name"`
	Description string `json:"description"`
	// Tested says that this project has run the provider.
	Tested bool `json:"tested"`
}

// The providers. AMD's ROCm provider was removed from ONNX Runtime; its successor is MIGraphX.
var (
	tensorrt = Provider{"tensorrt", "TensorrtExecutionProvider", "NVIDIA TensorRT", false}
	cuda     = Provider{"cuda", "CUDAExecutionProvider", "NVIDIA CUDA", true}
	migraphx = Provider{"migraphx", "MIGraphXExecutionProvider", "AMD MIGraphX, for ROCm", false}
	coreml   = Provider{"coreml", "CoreMLExecutionProvider", "Apple Core ML", false}
	directml = Provider{"directml", "DmlExecutionProvider", "Microsoft DirectML", false}
	openvino = Provider{"openvino", "OpenVINOExecutionProvider", "Intel OpenVINO", false}
	cpu      = Provider{"cpu", "CPUExecutionProvider", "the processor", true}
)

// Priority returns the providers of a platform, the preferred ones first.
func Priority(goos, goarch string) []Provider {
	switch {
	case goos == "darwin" && goarch == "arm64":
		return []Provider{coreml, cpu}
	case goos == "darwin":
		return []Provider{coreml, openvino, cpu}
	case goos == "windows":
		return []Provider{tensorrt, cuda, directml, openvino, cpu}
	default:
		return []Provider{tensorrt, cuda, migraphx, openvino, cpu}
	}
}

// aliases are other names of providers.
var aliases = map[string]string{
	"trt": "tensorrt", "gpu": "cuda", "nvidia": "cuda", "rocm": "migraphx", "amd": "migraphx", "metal": "coreml", "core": "coreml",
	"dml": "directml", "intel": "openvino",
}

// order returns the providers to try. A preferred one comes first, and with force it is alone. The
// names "" and "auto" prefer none.
func order(preferred string, force bool) ([]Provider, error) {
	all := Priority(runtime.GOOS, runtime.GOARCH)
	name := strings.ToLower(preferred)
	if name == "" || name == "auto" {
		return all, nil
	}
	name = strings.TrimSuffix(name, "executionprovider")
	if other, ok := aliases[name]; ok {
		name = other
	}
	i := slices.IndexFunc(all, func(p Provider) bool { return p.Name == name })
	if i < 0 {
		var known []string
		for _, p := range all {
			known = append(known, p.Name)
		}
		return nil, fmt.Errorf("there is no provider %q on this platform; the providers are %s", preferred, strings.Join(known, ", "))
	}
	chosen := all[i]
	if force {
		return []Provider{chosen}, nil
	}
	return slices.Insert(slices.Delete(all, i, i+1), 0, chosen), nil
}
