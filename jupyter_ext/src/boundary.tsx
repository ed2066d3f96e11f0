/** A wall around a part of the page: what breaks inside is said in words, and nothing else breaks with it. */
import React from 'react';
import type { Trans } from './words';

interface Props {
  readonly trans: Trans;
  /** What the part shows; once it is another, the part is tried again. */
  readonly shows: unknown;
  /** In place of the words, where there is no room for them. */
  readonly instead?: JSX.Element;
  readonly children: React.ReactNode;
}

interface Broken {
  readonly words: string | null;
}

export class Boundary extends React.Component<Props, Broken> {
  static getDerivedStateFromError(error: unknown): Broken {
    return { words: error instanceof Error ? error.message : String(error) };
  }

  state: Broken = { words: null };

  componentDidUpdate(before: Props): void {
    if (this.state.words !== null && before.shows !== this.props.shows) {
      this.setState({ words: null });
    }
  }

  render(): React.ReactNode {
    const { trans, instead, children } = this.props;
    const { words } = this.state;
    if (words === null) {
      return children;
    }
    return instead ?? (
      <div className="jp-selfsched-trouble" role="alert">
        <strong>{trans.__('This part cannot be shown')}</strong>
        <p>{trans.__('What the broker said is not what this page understands: %1', words.slice(0, 200))}</p>
        <p>{trans.__('Reload the page. If that does not help, the broker is of another version than the selfsched of this JupyterLab: bring both to the same.')}</p>
      </div>
    );
  }
}
