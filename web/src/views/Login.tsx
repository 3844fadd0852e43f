// SPDX-License-Identifier: Apache-2.0
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { type Schemas, send } from "../api/client";
import { useGet } from "../api/hooks";
import { Failure, Loading, ui } from "../ui/parts";

/** useMay reports whether the key of this browser has a scope. */
export const useMay = (scope: "read" | "admin") => useGet("/login", {}).data?.scopes.includes(scope) ?? false;

/** LoginGate shows its children if the Collector needs no key or the browser has logged in. */
export function LoginGate({ children }: { children: ReactNode }) {
  const state = useGet("/login", {});
  if (state.data) return state.data.authenticated ? children : <LoginPage />;
  return state.error ? <Failure error={state.error} /> : <Loading />;
}

/** setLogin changes the state and forgets what another key has read. */
function setLogin(client: QueryClient, state: Schemas["Login"]) {
  client.setQueryData(["/login", {}, {}], state);
  client.removeQueries({ predicate: (q) => q.queryKey[0] !== "/login" });
}

function LoginPage() {
  const client = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Log in · gpuflight";
  }, []);
  const login = async (e: FormEvent<HTMLFormElement>) => {
    e.preventDefault();
    const key = String(new FormData(e.currentTarget).get("key") ?? "");
    setBusy(true);
    setError(null);
    try {
      const body = new Blob([JSON.stringify({ key })], { type: "application/json" });
      const state = (await send("POST", "/login", body)) as Schemas["Login"];
      setLogin(client, state);
    } catch (e) {
      setError(e);
      setBusy(false);
    }
  };
  return (
    <div className={ui.page}>
      <h1>Log in</h1>
      <p className={ui.muted}>
        This Collector needs a key. Its administrator creates one with{" "}
        <code>gpuflight key create NAME --scope read</code>.
      </p>
      <form onSubmit={login} className={ui.row}>
        <label htmlFor="key">Key</label>
        <input id="key" name="key" type="password" autoComplete="current-password" required className={ui.input} />
        <button type="submit" className={`${ui.button} ${ui.primary}`} disabled={busy}>
          Log in
        </button>
      </form>
      {error !== null && <Failure error={error} />}
    </div>
  );
}

/** Account shows who has logged in. */
export function Account() {
  const client = useQueryClient();
  const { data } = useGet("/login", {});
  if (!data?.required || !data.authenticated) return null;
  const logout = async () => {
    await send("DELETE", "/login");
    setLogin(client, { required: true, authenticated: false, scopes: [] });
  };
  return (
    <>
      <span className={ui.muted} title={data.project ? `Project ${data.project}` : "Default project"}>
        {data.name}
      </span>
      <button type="button" className={ui.button} onClick={logout}>
        Log out
      </button>
    </>
  );
}
