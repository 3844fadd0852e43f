// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// printed is the shortened output of nvdisasm -c: two code sections, one with a device function.
const printed = `	.target	sm_90

//--------------------- .text.one                 --------------------------
	.section	.text.one,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=8"
	.align	128
        .global         one
one:
.text.one:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   BSSY B0, ` + "`(.L_x_1)" + ` ;
.L_x_0:
        /*0020*/              @!P0 BRA ` + "`(.L_x_0)" + ` ;
        /*0030*/                   CALL.REL.NOINC ` + "`($one$_Z3twov)" + ` ;
.L_x_1:
        /*0040*/                   BRA ` + "`(.L_x_9)" + `;
$one$_Z3twov:
        /*0050*/                   RET.REL.NODEC R4 ` + "`(one)" + ` ;

//--------------------- .nv.info --------------------------
	.section	.nv.info,"",@"SHT_CUDA_INFO"
        /*0000*/ 	.byte	0x04, 0x2f

	.section	.text.two,"ax",@progbits
        /*0000*/                   EXIT ;
`

func TestParseSASS_Texts(t *testing.T) {
	found := map[string]*sassText{}
	err := parseSASS(strings.NewReader(printed), 1<<20, func(section string, text *sassText) error {
		found[section] = text
		return nil
	})
	require.NoError(t, err)
	require.Len(t, found, 2)
	for offset, want := range map[uint64]string{
		0:  "LDC R1, c[0x0][0x28]",
		16: "BSSY B0, 0x40",
		32: "@!P0 BRA 0x20",
		47: "@!P0 BRA 0x20",
		48: "CALL.REL.NOINC `($one$_Z3twov)",
		64: "BRA `(.L_x_9)", // a label that is not there stays
		80: "RET.REL.NODEC R4 `(one)",
		96: "", 1 << 60: "",
	} {
		assert.Equal(t, want, found[".text.one"].at(offset), "%#x", offset)
	}
	assert.Equal(t, "EXIT", found[".text.two"].at(0))
}

func TestParseSASS_InvalidOutput(t *testing.T) {
	begin := ".section .text.one,\"ax\"\n"
	for name, c := range map[string]struct {
		text  string
		limit int64
		err   error
	}{
		"a gap":         {begin + "/*0000*/ NOP ;\n/*0020*/ NOP ;\n", 1 << 20, errIncomplete},
		"twice":         {begin + "/*0000*/ NOP ;\n/*0000*/ NOP ;\n", 1 << 20, errIncomplete},
		"no number":     {begin + "/*zzzz*/ NOP ;\n", 1 << 20, errIncomplete},
		"a comment":     {begin + "/*0000\n", 1 << 20, errIncomplete},
		"too much":      {begin + "/*0000*/ NOP ;\n/*0010*/ NOP ;\n", 10, errTooMuchText},
		"one long line": {begin + strings.Repeat("x", maxLineBytes+1), 1 << 20, errors.New("too long")},
	} {
		err := parseSASS(strings.NewReader(c.text), c.limit, func(string, *sassText) error { return nil })
		switch {
		case c.err == nil:
			assert.NoError(t, err, name)
		case errors.Is(c.err, errIncomplete), errors.Is(c.err, errTooMuchText):
			assert.ErrorIs(t, err, c.err, name)
		default:
			assert.ErrorContains(t, err, c.err.Error(), name)
		}
	}
	stop := errors.New("stop")
	err := parseSASS(strings.NewReader(begin), 1<<20, func(string, *sassText) error { return stop })
	assert.ErrorIs(t, err, stop)
}

func TestReadableNames(t *testing.T) {
	for symbol, want := range map[string]string{
		"_Z3foov":                            "_Z3foov",
		"$_Z6kernelPf$_Z5inneri":             "_Z5inneri",
		"$__internal_0_$__cuda_sm20_rem_s64": "__cuda_sm20_rem_s64",
		"$":                                  "$",
		"$$":                                 "$$",
		"$alone":                             "$alone",
		"":                                   "",
		"with$dollar":                        "with$dollar",
	} {
		assert.Equal(t, want, readable(symbol))
	}
}

func FuzzParseSASS(f *testing.F) {
	f.Add(printed)
	f.Add(".section .text.a,\n/*0000*/ BRA `(.L_) ;\n.L_:\n")
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 16
		alloctest.Limit{PerByte: 1 << 8, Constant: 1 << 21}.Check(t, len(text), func() {
			_ = parseSASS(strings.NewReader(text), limit, func(string, *sassText) error { return nil })
		})
		var kept int64
		_ = parseSASS(strings.NewReader(text), limit, func(section string, s *sassText) error {
			assert.True(t, strings.HasPrefix(section, ".text"))
			n := 0
			for i := range s.ends {
				n += len(s.at(uint64(i) * InstructionBytes))
			}
			assert.Len(t, s.text, n)
			// An offset may be longer than its label, by some bytes.
			kept += int64(len(s.text))
			return nil
		})
		assert.LessOrEqual(t, kept, int64(2*limit))
	})
}
