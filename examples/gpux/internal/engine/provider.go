// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strconv"
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

var all = []Provider{tensorrt, cuda, migraphx, coreml, directml, openvino, cpu}

// Priority returns the providers of a platform, the preferred ones first. The others do not exist there.
func Priority(goos, goarch string) []Provider {
	switch {
	case goos == "darwin" && goarch == "arm64":
		return []Provider{coreml, cpu}
	case goos == "darwin":
		return []Provider{coreml, openvino, cpu}
	case goos == "windows":
		return []Provider{tensorrt, cuda, directml, openvino, migraphx, cpu}
	default:
		return []Provider{tensorrt, cuda, migraphx, openvino, cpu}
	}
}

// absent returns the providers that do not exist on a platform.
func absent(goos, goarch string) (list []Rejection) {
	for _, p := range all {
		if !slices.Contains(Priority(goos, goarch), p) {
			list = append(list, Rejection{p.Name, fmt.Sprintf("it does not exist on %s/%s", goos, goarch)})
		}
	}
	return list
}

// named returns the provider that a user means: by its name here or in ONNX Runtime, by what it runs
// on, or by an abbreviation in the text.
func named(text string) (Provider, bool) {
	name := strings.TrimSuffix(strings.ToLower(text), "executionprovider")
	for _, p := range all {
		if name == p.Name || name == strings.ToLower(strings.TrimSuffix(p.ORT, "ExecutionProvider")) {
			return p, true
		}
	}
	for _, n := range []struct {
		part string
		p    Provider
	}{
		{"trt", tensorrt}, {"tensor", tensorrt}, {"gpu", cuda}, {"nvidia", cuda}, {"cuda", cuda}, {"rocm", migraphx}, {"amd", migraphx}, {"hip", migraphx},
		{"core", coreml}, {"metal", coreml}, {"dml", directml}, {"directx", directml}, {"openvino", openvino}, {"intel", openvino},
	} {
		if strings.Contains(name, n.part) {
			return n.p, true
		}
	}
	return Provider{}, false
}

// order returns the providers to try on a platform, and those that were preferred but do not exist
// there. A preferred one comes first, and with force it is alone. The names "" and "auto" prefer none.
func order(preferred string, force bool, goos, goarch string) ([]Provider, []Rejection, error) {
	here := Priority(goos, goarch)
	if name := strings.ToLower(preferred); name == "" || name == "auto" {
		return here, nil, nil
	}
	var names []string
	for _, p := range here {
		names = append(names, p.Name)
	}
	chosen, ok := named(preferred)
	if !ok {
		return nil, nil, fmt.Errorf("there is no provider %q; the providers of %s/%s are %s", preferred, goos, goarch, strings.Join(names, ", "))
	}
	i := slices.Index(here, chosen)
	if i < 0 {
		r := Rejection{chosen.Name, fmt.Sprintf("it does not exist on %s/%s", goos, goarch)}
		if force {
			return nil, nil, fmt.Errorf("the provider %s does not work: %s; the providers are %s", r.Provider, r.Reason, strings.Join(names, ", "))
		}
		return here, []Rejection{r}, nil
	}
	if force {
		return []Provider{chosen}, nil, nil
	}
	return slices.Insert(slices.Delete(here, i, i+1), 0, chosen), nil, nil
}

// settings returns the options of a provider that differ from its own defaults.
func settings(p Provider, o Options) map[string]string {
	values := map[string]string{}
	if p.Name == cuda.Name {
		values["device_id"] = "0"
		// Batches differ in size. The default measures all algorithms again whenever the size changes, which
		// took 118 ms on an H100.
		values["cudnn_conv_algo_search"] = "HEURISTIC"
		if o.GPUMemory > 0 {
			values["gpu_mem_limit"] = strconv.FormatInt(o.GPUMemory, 10)
		}
	}
	return values
}
