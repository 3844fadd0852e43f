// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"strings"

	"github.com/gpuflight/gpuflight/internal/occupancy"
)

// model is what a device's name tells about it. Zero is unknown: where parts of one name differ, a
// model leaves out in what they do.
type model struct {
	capability occupancy.Capability
	// sms is the number of multiprocessors.
	sms int64
	// memory is the peak of the device memory in GB/s (10⁹ bytes a second).
	memory float64
	// pcie is the link to the host; none where that is NVLink-C2C or shared memory.
	pcie PCIeConfig
	// nvlink is the peak to other devices in GB/s in one direction: half of what data sheets call
	// NVLink's bandwidth. For boards with a bridge it is that of the bridge.
	nvlink float64
}

// Capabilities and links of the table below.
var (
	volta, turing      = occupancy.Capability{Major: 7, Minor: 0}, occupancy.Capability{Major: 7, Minor: 5}
	ampere, ampereGA10 = occupancy.Capability{Major: 8, Minor: 0}, occupancy.Capability{Major: 8, Minor: 6}
	orin, ada          = occupancy.Capability{Major: 8, Minor: 7}, occupancy.Capability{Major: 8, Minor: 9}
	hopper             = occupancy.Capability{Major: 9, Minor: 0}
	blackwell, ultra   = occupancy.Capability{Major: 10, Minor: 0}, occupancy.Capability{Major: 10, Minor: 3}
	thor               = occupancy.Capability{Major: 11, Minor: 0}
	blackwellRTX       = occupancy.Capability{Major: 12, Minor: 0}
	spark              = occupancy.Capability{Major: 12, Minor: 1}

	pcie3x16, pcie4x16, pcie5x16 = PCIeConfig{3, 16}, PCIeConfig{4, 16}, PCIeConfig{5, 16}
	pcie4x8, pcie5x8             = PCIeConfig{4, 8}, PCIeConfig{5, 8}
	noPCIe                       PCIeConfig
)

// models is by name as NVML and CUDA give it, without "NVIDIA" and "Tesla", with spaces for dashes.
// Sources: NVIDIA's data sheets and architecture white papers of each product; the H200's figures
// were besides seen on one (docs/internals/measurements.md). A property of the span or its resource wins over these.
var models = map[string]model{
	// Data centre.
	"V100":             {volta, 80, 0, pcie3x16, 0},
	"V100 SXM2":        {volta, 80, 900, pcie3x16, 150},
	"V100 SXM3":        {volta, 80, 0, pcie3x16, 150},
	"V100 PCIE":        {volta, 80, 900, pcie3x16, 0},
	"V100S PCIE":       {volta, 80, 1134, pcie3x16, 0},
	"T4":               {turing, 40, 320, pcie3x16, 0},
	"A2":               {ampereGA10, 10, 200, pcie4x8, 0},
	"A10":              {ampereGA10, 72, 600, pcie4x16, 0},
	"A10G":             {ampereGA10, 0, 600, pcie4x16, 0},
	"A30":              {ampere, 56, 933, pcie4x16, 100},
	"A40":              {ampereGA10, 84, 696, pcie4x16, 56.25},
	"A100":             {ampere, 0, 0, pcie4x16, 0},
	"A100 SXM4 40GB":   {ampere, 108, 1555, pcie4x16, 300},
	"A100 SXM4 80GB":   {ampere, 108, 2039, pcie4x16, 300},
	"A100 SXM 80GB":    {ampere, 108, 2039, pcie4x16, 300},
	"A100 PCIE 40GB":   {ampere, 108, 1555, pcie4x16, 300},
	"A100 PCIE 80GB":   {ampere, 108, 1935, pcie4x16, 300},
	"A100 80GB PCIe":   {ampere, 108, 1935, pcie4x16, 300},
	"A800":             {ampere, 0, 0, pcie4x16, 200},
	"A800 SXM4 80GB":   {ampere, 108, 2039, pcie4x16, 200},
	"A800 80GB PCIe":   {ampere, 108, 1935, pcie4x16, 200},
	"L4":               {ada, 58, 300, pcie4x16, 0},
	"L40":              {ada, 142, 864, pcie4x16, 0},
	"L40S":             {ada, 142, 864, pcie4x16, 0},
	"H100":             {hopper, 0, 0, pcie5x16, 0},
	"H100 80GB HBM3":   {hopper, 132, 3350, pcie5x16, 450},
	"H100 PCIe":        {hopper, 114, 2039, pcie5x16, 300},
	"H100 NVL":         {hopper, 132, 3938, pcie5x16, 300},
	"H800":             {hopper, 132, 3350, pcie5x16, 200},
	"H800 PCIe":        {hopper, 114, 2039, pcie5x16, 200},
	"H20":              {hopper, 78, 4000, pcie5x16, 450},
	"H200":             {hopper, 132, 4800, pcie5x16, 450},
	"H200 NVL":         {hopper, 132, 4800, pcie5x16, 450},
	"GH200":            {hopper, 132, 0, noPCIe, 450},
	"GH200 480GB":      {hopper, 132, 4000, noPCIe, 450},
	"GH200 144G HBM3e": {hopper, 132, 4900, noPCIe, 450},
	"B100":             {blackwell, 0, 8000, pcie5x16, 900},
	"B200":             {blackwell, 148, 8000, pcie5x16, 900},
	"GB200":            {blackwell, 152, 8000, noPCIe, 900},
	"B300":             {ultra, 0, 8000, noPCIe, 900},
	"GB300":            {ultra, 0, 8000, noPCIe, 900},

	// GeForce, desktop.
	"GeForce RTX 2060":          {turing, 0, 336, pcie3x16, 0}, // 30 or 34 multiprocessors
	"GeForce RTX 2060 SUPER":    {turing, 34, 448, pcie3x16, 0},
	"GeForce RTX 2070":          {turing, 36, 448, pcie3x16, 0},
	"GeForce RTX 2070 SUPER":    {turing, 40, 448, pcie3x16, 0},
	"GeForce RTX 2080":          {turing, 46, 448, pcie3x16, 0},
	"GeForce RTX 2080 SUPER":    {turing, 48, 496, pcie3x16, 0},
	"GeForce RTX 2080 Ti":       {turing, 68, 616, pcie3x16, 0},
	"GeForce RTX 3050":          {ampereGA10, 0, 0, pcie4x8, 0},
	"GeForce RTX 3060":          {ampereGA10, 28, 0, pcie4x16, 0}, // 360 or 240 GB/s
	"GeForce RTX 3060 Ti":       {ampereGA10, 38, 0, pcie4x16, 0}, // 448 or 608 GB/s
	"GeForce RTX 3070":          {ampereGA10, 46, 448, pcie4x16, 0},
	"GeForce RTX 3070 Ti":       {ampereGA10, 48, 608, pcie4x16, 0},
	"GeForce RTX 3080":          {ampereGA10, 0, 0, pcie4x16, 0}, // 68 and 760 GB/s, or 70 and 912
	"GeForce RTX 3080 Ti":       {ampereGA10, 80, 912, pcie4x16, 0},
	"GeForce RTX 3090":          {ampereGA10, 82, 936, pcie4x16, 56.25},
	"GeForce RTX 3090 Ti":       {ampereGA10, 84, 1008, pcie4x16, 56.25},
	"GeForce RTX 4060":          {ada, 24, 272, pcie4x8, 0},
	"GeForce RTX 4060 Ti":       {ada, 34, 288, pcie4x8, 0},
	"GeForce RTX 4070":          {ada, 46, 0, pcie4x16, 0}, // 504 or 480 GB/s
	"GeForce RTX 4070 SUPER":    {ada, 56, 504, pcie4x16, 0},
	"GeForce RTX 4070 Ti":       {ada, 60, 504, pcie4x16, 0},
	"GeForce RTX 4070 Ti SUPER": {ada, 66, 672, pcie4x16, 0},
	"GeForce RTX 4080":          {ada, 76, 717, pcie4x16, 0},
	"GeForce RTX 4080 SUPER":    {ada, 80, 736, pcie4x16, 0},
	"GeForce RTX 4090":          {ada, 128, 1008, pcie4x16, 0},
	"GeForce RTX 4090 D":        {ada, 114, 1008, pcie4x16, 0},
	"GeForce RTX 5060":          {blackwellRTX, 30, 448, pcie5x8, 0},
	"GeForce RTX 5060 Ti":       {blackwellRTX, 36, 448, pcie5x8, 0},
	"GeForce RTX 5070":          {blackwellRTX, 48, 672, pcie5x16, 0},
	"GeForce RTX 5070 Ti":       {blackwellRTX, 70, 896, pcie5x16, 0},
	"GeForce RTX 5080":          {blackwellRTX, 84, 960, pcie5x16, 0},
	"GeForce RTX 5090":          {blackwellRTX, 170, 1792, pcie5x16, 0},
	"GeForce RTX 5090 D":        {blackwellRTX, 170, 1792, pcie5x16, 0},

	// Workstations.
	"RTX A2000":                          {ampereGA10, 26, 288, pcie4x16, 0},
	"RTX A4000":                          {ampereGA10, 48, 448, pcie4x16, 0},
	"RTX A4500":                          {ampereGA10, 56, 640, pcie4x16, 56.25},
	"RTX A5000":                          {ampereGA10, 64, 768, pcie4x16, 56.25},
	"RTX A5500":                          {ampereGA10, 80, 768, pcie4x16, 56.25},
	"RTX A6000":                          {ampereGA10, 84, 768, pcie4x16, 56.25},
	"RTX 2000 Ada":                       {ada, 22, 224, pcie4x8, 0},
	"RTX 4000 Ada":                       {ada, 48, 360, pcie4x16, 0},
	"RTX 4000 SFF Ada":                   {ada, 48, 280, pcie4x16, 0},
	"RTX 4500 Ada":                       {ada, 60, 432, pcie4x16, 0},
	"RTX 5000 Ada":                       {ada, 100, 576, pcie4x16, 0},
	"RTX 6000 Ada":                       {ada, 142, 960, pcie4x16, 0},
	"RTX PRO 4000 Blackwell":             {blackwellRTX, 0, 672, pcie5x16, 0},
	"RTX PRO 4500 Blackwell":             {blackwellRTX, 0, 896, pcie5x16, 0},
	"RTX PRO 5000 Blackwell":             {blackwellRTX, 0, 1344, pcie5x16, 0},
	"RTX PRO 6000 Blackwell Workstation": {blackwellRTX, 188, 1792, pcie5x16, 0},
	"RTX PRO 6000 Blackwell Max Q Workstation": {blackwellRTX, 188, 1792, pcie5x16, 0},
	"RTX PRO 6000 Blackwell Server":            {blackwellRTX, 188, 1597, pcie5x16, 0},
	"RTX PRO 6000 Blackwell":                   {blackwellRTX, 188, 0, pcie5x16, 0},

	// Modules: one name for parts of different sizes, and the host's memory is the device's.
	"Orin": {orin, 0, 0, noPCIe, 0},
	"Thor": {thor, 0, 0, noPCIe, 0},
	"GB10": {spark, 48, 273, noPCIe, 0},
}

// modelOf returns the table entry for a device's name: the entry that matches the most words from the
// beginning of the name. Further words that only name sizes and kinds of memory are ignored. After any
// other word (Laptop, MIG, a variant not in the table) only the capability is used, because the other
// properties may differ. modelOf returns the zero model for an unknown name.
func modelOf(name string) model {
	if len(name) > maxName {
		return model{}
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "NVIDIA "), "Tesla ")
	words := strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' })
	for n := len(words); n > 0; n-- {
		m, ok := models[strings.Join(words[:n], " ")]
		if !ok {
			continue
		}
		for _, w := range words[n:] {
			if !neutral(w) {
				return model{capability: m.capability}
			}
		}
		return m
	}
	return model{}
}

// maxName is above any device's name and keeps the search short.
const maxName = 128

// neutral tells whether a word of a name leaves open nothing that the entry states.
func neutral(word string) bool {
	switch word {
	case "GPU", "Generation", "Edition", "HBM2", "HBM2e", "HBM3", "HBM3e":
		return true
	}
	size, ok := strings.CutSuffix(word, "GB")
	return ok && size != "" && strings.Trim(size, "0123456789") == ""
}
