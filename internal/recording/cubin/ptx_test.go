// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/semconv"
)

func TestFile_PTX(t *testing.T) {
	const plain = `.visible .entry plain(
.param .u64 plain_param_0,
.param .f32 plain_param_1
)
{
.reg .f32 	%f<2>;
.reg .b32 	%r<2>;
.reg .b64 	%rd<5>;
ld.param.u64 	%rd1, [plain_param_0];
ld.param.f32 	%f1, [plain_param_1];
cvta.to.global.u64 	%rd2, %rd1;
mov.u32 	%r1, %tid.x;
mul.wide.u32 	%rd3, %r1, 4;
add.s64 	%rd4, %rd2, %rd3;
st.global.f32 	[%rd4], %f1;
ret;
}
`
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			f, err := Open(golden(t, name))
			require.NoError(t, err)
			text, ok := f.PTX("plain")
			require.True(t, ok)
			want := plain
			if name == "lines.sm_100" { // nvcc writes it another way for this architecture
				want = strings.NewReplacer("u64 plain", "u64 .ptr .align 1 plain", ".reg .f32 \t%f<2>;\n.reg .b32 \t%r<2>;", ".reg .b32 \t%r<2>;\n.reg .b32 \t%f<2>;").Replace(plain)
			}
			assert.Equal(t, want, text)
			text, ok = f.PTX("$_Z7inlinedILi32EEvPfPKf$_Z8outlinedfi")
			require.True(t, ok)
			assert.True(t, strings.HasPrefix(text, ".func  (.param .b32 func_retval0) _Z8outlinedfi(\n"), text)
			assert.Equal(t, 1, strings.Count(text, "ret;"))
			for _, fn := range f.Functions() {
				text, ok = f.PTX(fn.Name)
				require.Equal(t, !strings.Contains(fn.Name, "__cuda_sm"), ok, fn.Name)
				assert.Equal(t, ok, strings.HasSuffix(text, "}\n"))
			}
			_, ok = f.PTX("plai")
			assert.False(t, ok)
		})
	}
}

func TestPTX_Text(t *testing.T) {
	lines := func(s ...string) string { return strings.Join(s, "\x00") }
	for _, x := range []struct{ name, text, want string }{
		{"a declaration before the function", lines(".extern .func f", "(", ".param .b32 p", ")", ";", ".func f(", ")", "{", "ret;", "}"), ".func f(\n)\n{\nret;\n}\n"},
		{"braces in a line and in a comment", lines(".entry f()", "{", "{ cvt.f32 a, b;}", "// }", "mov.b64 {a, b}, c;", "ret;", "}", "}"), ".entry f()\n{\n{ cvt.f32 a, b;}\n// }\nmov.b64 {a, b}, c;\nret;\n}\n"},
		{"a function whose name begins the same", lines(".entry f2()", "{", "}", ".entry f()", "{", "ret;", "}"), ".entry f()\n{\nret;\n}\n"},
		{"no end", lines(".entry f()", "{", "ret;"), ""},
		{"nothing", "", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			text, ok := ptx([]byte(x.text), []byte("f"))
			assert.Equal(t, x.want, text)
			assert.Equal(t, x.want != "", ok)
		})
	}
}

func TestResolver_PTX(t *testing.T) {
	r := NewResolver(Settings{Image: func(uint64) []byte { return golden(t, "lines.sm_90") }})
	l, ok := r.PTX(7, "_Z9remainderPxx")
	require.True(t, ok)
	assert.Equal(t, semconv.CUDAListingKindPTX, l.Kind)
	assert.Equal(t, "remainder(long long*, long long)", l.Function.Full)
	assert.Equal(t, [2]any{uint64(7), "sm_90"}, [2]any{l.CRC, l.Architecture})
	_, ok = r.PTX(7, "none")
	assert.False(t, ok)
}
