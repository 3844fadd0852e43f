// SPDX-License-Identifier: Apache-2.0

/** Syntax colours for CUDA C++, Python, Go, PTX and SASS. It distinguishes what helps the reader, not the grammar. */

export type TokenKind = "comment" | "string" | "number" | "keyword" | "register" | "label" | "text";
export interface Token {
  kind: TokenKind;
  text: string;
}

const keywords =
  /^(?:if|else|for|while|do|return|switch|case|break|continue|const|constexpr|static|inline|template|typename|struct|class|namespace|using|public|private|void|int|float|double|half|bool|char|unsigned|long|short|auto|size_t|true|false|nullptr|sizeof|def|import|from|as|with|lambda|None|True|False|and|or|not|in|is|yield|func|package|type|var|range|go|defer|map|chan|interface|__global__|__device__|__host__|__shared__|__restrict__|__syncthreads|extern)$/;

const code =
  /(\/\/.*|#(?!\w*include|define|pragma|if|endif).*|\/\*.*?\*\/)|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(\b(?:0x[\da-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)[fuUlL]*\b)|([A-Za-z_]\w*)|([^A-Za-z_\d"'/#]+|.)/g;
const assembly =
  /(\/\/.*|\/\*.*?\*\/)|("(?:\\.|[^"\\])*")|(\b(?:0[xfd][\da-fA-F]+|\d+(?:\.\d+)?)\b)|(%\w+|\bU?R\d+\b|\bU?P[T\d]\b|\bRZ\b)|(\.L\w+:?|^\s*\$?\w+:)|([A-Z][A-Z0-9]+(?:\.[A-Z0-9_]+)*|\b[a-z]\w*(?:\.[a-z]\w*)+)|([^%"/\w.]+|\w+|.)/g;

/** tokens splits one line. */
export function tokens(line: string, kind: "sass" | "ptx" | "source"): Token[] {
  const result: Token[] = [];
  const push = (k: TokenKind, text: string) => {
    const last = result.at(-1);
    if (last && last.kind === k) last.text += text;
    else result.push({ kind: k, text });
  };
  if (kind === "source") {
    for (const m of line.matchAll(code)) {
      push(
        m[1] ? "comment" : m[2] ? "string" : m[3] ? "number" : m[4] && keywords.test(m[4]) ? "keyword" : "text",
        m[0],
      );
    }
  } else {
    for (const m of line.matchAll(assembly)) {
      push(
        m[1]
          ? "comment"
          : m[2]
            ? "string"
            : m[3]
              ? "number"
              : m[4]
                ? "register"
                : m[5]
                  ? "label"
                  : m[6]
                    ? "keyword"
                    : "text",
        m[0],
      );
    }
  }
  return result;
}

/** sassOffset reads the offset of an instruction from a line of a listing, as nvdisasm writes it. */
export function sassOffset(line: string): number | undefined {
  const m = /\/\*([0-9a-f]{4,})\*\//.exec(line) ?? /^\s*(?:0x)?([0-9a-f]{4,}):?\s+[@A-Z]/.exec(line);
  return m ? Number.parseInt(m[1] as string, 16) : undefined;
}
